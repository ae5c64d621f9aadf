"""An index made from a class of another framework, named in the configuration: LangChain's or LlamaIndex'.

Their classes block, so calls run in threads of their own. At the start a class is tried out: one that finds vectors
under labels that were not asked for, or does not forget what was removed, is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import msgspec

from appliance.plugin import AppContext, ConfigError, Conflict, NotFound, RetrievalUnavailable, StartError, Strict
from appliance_retrieval.catalogue import Entry, Selection
from appliance_retrieval.catalogued import CataloguedStore, catalogue_folder
from appliance_retrieval.class_path import build_parts, filled, load, mentions
from appliance_retrieval.index_check import check_index
from appliance_retrieval.places import place_of

log = logging.getLogger("appliance.retrieval")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_BATCH = 100


class Framework(Protocol):
    """What a framework's vector stores have in common. Methods block, and raise what the class raises."""

    name: str

    def make(self, target: Any, arguments: dict[str, Any], dimensions: int) -> Any:
        """A store. Raises ConfigError when ``target`` makes none of this framework."""
        ...

    def add(self, store: Any, entries: Sequence[Entry]) -> None:
        """Write vectors under their keys, with the metadata ``key``, ``access`` and ``facets``."""

    def remove(self, store: Any, keys: Sequence[str]) -> None:
        """Remove vectors."""

    def nearest(self, store: Any, vector: bytes, limit: int, selection: Selection) -> list[str]:
        """Keys of the nearest vectors under the labels."""
        ...

    def clear(self, store: Any) -> None:
        """Remove what the store is kept in, where the class can."""


class ClassSettings(Strict, frozen=True):
    """Which class keeps the vectors, and how it is made; each framework's plugin adds what it has of its own."""

    class_: str = msgspec.field(name="class", default="")
    """``package.module.Class``, or one of its class methods that makes a store."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its arguments; ``{collection}``, ``{dimensions}``, ``{data_dir}`` and ``{tenant}`` are filled in."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Calls at once; more than one only for a class that threads may share."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    """Seconds a call may take."""
    check_dimensions: Annotated[int, msgspec.Meta(ge=2, le=65_536)] = 384
    """Length of the vectors with which the class is tried out at the start."""


class ClassIndex:
    """``VectorIndex`` over one object of the class for each collection.

    ``names`` are what arguments may mention, whatever the collection.
    """

    def __init__(self, framework: Framework, settings: ClassSettings, names: Mapping[str, str]) -> None:
        self._framework, self._settings, self._names = framework, settings, names
        self._threads: ThreadPoolExecutor | None = None
        self._target: Any = None
        self._arguments: Any = {}
        self._stores: dict[str, Any] = {}
        self._replaces = True

    async def start(self) -> None:
        """Load the class, make what is shared, try it out. Raises ConfigError, StartError."""
        self._threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix=self._framework.name)
        try:
            where = _where(self._framework)
            self._target = load(self._settings.class_, f"{where}.class")
            try:
                given = filled(self._settings.arguments, self._names)
                self._arguments = await self._run(build_parts, given, f"{where}.arguments")
                self._replaces = await check_index(self, self._settings.check_dimensions)
            except RetrievalUnavailable as error:
                reason = f"{type(error.__cause__).__name__}" if error.__cause__ else str(error)
                raise StartError(
                    f"{where}: {self._settings.class_} cannot be used ({reason}); check its arguments and its server"
                ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Let running calls finish, then close what can be closed. Idempotent."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
            await asyncio.to_thread(_close_all, [*self._stores.values(), *_objects(self._arguments)])
        self._stores, self._arguments = {}, {}

    async def open(self, collection: str, dimensions: int) -> None:
        """Make the object of a collection."""
        if collection not in self._stores:
            arguments = filled(self._arguments, {"collection": collection, "dimensions": dimensions})
            self._stores[collection] = await self._run(self._framework.make, self._target, arguments, dimensions)

    async def add(self, collection: str, entries: Sequence[Entry]) -> None:
        """Write vectors; where the class would keep old ones beside them, those go first."""
        store = self._opened(collection)
        for i in range(0, len(entries), _BATCH):
            part = entries[i : i + _BATCH]
            if not self._replaces:
                await self._run(self._framework.remove, store, [entry.key for entry in part])
            await self._run(self._framework.add, store, part)

    async def remove(self, collection: str, keys: Sequence[str]) -> None:
        """Remove vectors."""
        store = self._opened(collection)
        for i in range(0, len(keys), _BATCH):
            await self._run(self._framework.remove, store, keys[i : i + _BATCH])

    async def nearest(self, collection: str, vector: bytes, limit: int, selection: Selection) -> Sequence[str]:
        """Keys of the nearest vectors under the labels."""
        return await self._run(self._framework.nearest, self._opened(collection), vector, limit, selection)

    def _opened(self, collection: str) -> Any:
        if self._threads is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        if collection not in self._stores:
            raise NotFound("the collection is gone; create the vector store again")
        return self._stores[collection]

    async def seal(self, collection: str) -> None:
        """Nothing to do: these classes say nothing of when what they were given is found."""

    async def drop(self, collection: str, keys: Sequence[str]) -> None:
        """Remove what the collection holds, and what it was kept in if that is its own."""
        await self.remove(collection, keys)
        store = self._stores.pop(collection)
        if mentions(self._settings.arguments, "collection"):
            await self._run(self._framework.clear, store)

    async def _run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._threads is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        running = asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await running
        except (ConfigError, StartError, Conflict):
            raise
        except TimeoutError as error:
            raise RetrievalUnavailable(f"{self._settings.class_} did not answer in time; try again") from error
        except Exception as error:
            # The class is not ours: its messages may hold anything, and are not shown.
            log.warning("%s failed: %s", self._settings.class_, type(error).__name__)
            raise RetrievalUnavailable(
                f"{self._settings.class_} failed ({type(error).__name__}); try again, and check its server"
            ) from error


def class_store(framework: Framework, settings: ClassSettings, context: AppContext) -> CataloguedStore:
    """The store that a plugin's settings ask for, not started.

    Raises:
        ConfigError: no class is named, or tenants are to be kept apart and nothing in the arguments does so.
    """
    where = _where(framework)
    if not settings.class_:
        raise ConfigError(f"{where}.class: name the class of the vector store, as package.module.Class")
    if context.tenant is not None and not mentions(settings.arguments, "tenant"):
        raise ConfigError(
            f"{where}.arguments: retrieval.separate_tenants needs {{tenant}} in one of them, as in the name"
            " of a database or folder"
        )
    tenant = "" if context.tenant is None else place_of(context.tenant)
    index = ClassIndex(framework, settings, {"data_dir": str(context.data_dir), "tenant": tenant})
    return CataloguedStore(index, catalogue_folder(context, framework.name))


def _where(framework: Framework) -> str:
    """The YAML path of the plugin's block."""
    return f"plugin.{framework.name}"


def _objects(arguments: Any) -> list[Any]:
    """What was made for the arguments."""
    if isinstance(arguments, dict | list):
        parts = arguments.values() if isinstance(arguments, dict) else arguments
        return [found for part in parts for found in _objects(part)]
    return [arguments] if hasattr(arguments, "close") else []


def _close_all(objects: Sequence[Any]) -> None:
    """By ``close``, theirs or their client's; what has neither, or fails, has nothing more to lose."""
    for item in objects:
        with contextlib.suppress(Exception):
            holder = item if hasattr(item, "close") else item.client
            holder.close()
