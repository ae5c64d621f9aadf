"""Counters in Redis, which several replicas share.

Each step is one Lua script, so that a debit is atomic over all its lines. What a process holds when it dies comes
free by itself: places are leases that it renews. When Redis does not answer, nobody waits for it again until a
background task has seen it back; what is owed to it meanwhile is settled then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, cast

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from appliance.plugin import ConfigError
from appliance_plugins.limits.ledger import Away, Taken
from appliance_plugins.limits.lines import MINUTE, Amounts, Kind, Line

log = logging.getLogger("appliance.limits")
_PREFIX = "appliance:limits:"
_CONNECTIONS = 16
_OWED = 100_000
_RETRY_SECONDS = 0.5
_PER_RENEWAL = 500
_BUCKET_MS = int(MINUTE * 1000)
_pack = msgspec.msgpack.Encoder().encode
_UNDO = 2
"""In place of a reservation, for a debit that may not have arrived yet."""


class RedisLedger:
    """Counters on a Redis server. ``lease_seconds`` is how long a dead process keeps its places.

    Use it as an async context manager: inside, leases are renewed and debts settled.
    """

    def __init__(self, url: str, *, timeout: float = 0.5, lease_seconds: float = 30.0) -> None:
        """``timeout``: seconds that one step may take. Raises ConfigError when the URL is none."""
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=timeout,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                client_name="appliance-limits",
            )
        except ValueError as error:
            raise ConfigError(f"plugin.limits.redis: {error}") from None
        self._redis: Redis = Redis.from_pool(pool)
        self._timeout = timeout
        self._lease_ms = int(lease_seconds * 1000)
        self._take, self._settle, self._renew = (
            self._redis.register_script((files("appliance_plugins.limits") / "scripts" / f"{name}.lua").read_text())
            for name in ("take", "settle", "renew")
        )
        self._held: dict[str, list[str]] = {}
        self._owed: deque[tuple[list[str], list[Any]]] = deque(maxlen=_OWED)
        self._settling: set[asyncio.Task[None]] = set()
        self._away = False
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether Redis did not answer and has not been seen since."""
        return self._away

    @property
    def owed(self) -> int:
        """Settlements that wait for Redis."""
        return len(self._owed)

    async def __aenter__(self) -> RedisLedger:
        """Look for Redis once; if it is not there, go on without."""
        with suppress(Away):
            await self._try_writing()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Settle what is owed, if Redis answers, and close."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._settling:
            await asyncio.wait(self._settling)
        if not self._away:
            with suppress(Away):
                await self._pay()
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def take(self, lease: str, lines: Sequence[Line], amounts: Amounts, *, again: bool = False) -> Taken:
        """Debit all lines or none. Raises Away."""
        if self._away:
            raise Away
        keys, arguments = _arguments(lease, self._lease_ms, lines, amounts, 0 if again else None)
        try:
            ok, *used = cast("list[Any]", await self._within(self._take(keys=keys, args=arguments)))
        except BaseException:
            # Whether it was made is unknown. A first debit is undone if it was; what was to be added stays charged.
            if not again:
                undo = Amounts(*(-amount for amount in amounts))
                self._owed.append(_arguments(lease, 0, lines, undo, _UNDO))
                self._wake.set()
            raise
        if ok and (slots := [key for key, line in zip(keys[1:], lines, strict=True) if line.kind is Kind.SLOTS]):
            self._held[lease] = slots
        return Taken(bool(ok), [float(number) for number in used])

    async def settle(self, lease: str, lines: Sequence[Line], change: Amounts, elapsed: float) -> None:
        """Give the places back and correct the budgets, in a task that a cancelled caller does not take along."""
        self._held.pop(lease, None)
        lines = [line for line in lines if line.kind is not Kind.REQUESTS]
        if lines:
            settling = asyncio.create_task(self._send(_arguments(lease, int(elapsed * 1000), lines, change)))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            await asyncio.shield(settling)

    async def _send(self, debt: tuple[list[str], list[Any]]) -> None:
        try:
            if self._away:
                raise Away
            await self._within(self._settle(keys=debt[0], args=debt[1]))
        except Away:
            self._owed.append(debt)

    async def _keep(self) -> None:
        """Renew leases in time; after a fault, look until Redis is back, then pay what is owed.

        Ends when it is cancelled, also where a fault on the way out took the place of the cancellation.
        """
        me = asyncio.current_task()
        while me is not None and not me.cancelling():
            try:
                async with asyncio.timeout(self._lease_ms / 3000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._look_after()
            except Exception:  # else places would expire under those who hold them, and nobody would be counted again
                log.exception("plugin limits: looking after Redis failed; it is tried again")

    async def _look_after(self) -> None:
        while self._away:
            await asyncio.sleep(_RETRY_SECONDS)
            await self._look()
        with suppress(Away):
            await self._pay()
            await self._renew_all()

    async def _look(self) -> None:
        try:
            await self._try_writing()
        except Away:
            return
        self._away = False
        log.warning("plugin limits: Redis answers again")

    async def _try_writing(self) -> None:
        """Renew a place that nobody holds: a full server, and a copy that may not be written, answer pings as ever."""
        await self._within(self._renew(keys=[f"{_PREFIX}nobody"], args=[self._lease_ms, "nobody"]))

    async def _pay(self) -> None:
        """Settle what is owed, oldest first; a debt leaves the queue when Redis has it. Raises Away."""
        while self._owed:
            keys, arguments = debt = self._owed[0]
            try:
                await self._within(self._settle(keys=keys, args=arguments))
            except Away as error:
                if not isinstance(error.__cause__, ResponseError):
                    raise
                log.warning("plugin limits: Redis refuses a settlement; what it would give back stays charged")
            if self._owed and self._owed[0] is debt:
                self._owed.popleft()

    async def _renew_all(self) -> None:
        held = [(key, lease) for lease, keys in self._held.items() for key in keys]
        for start in range(0, len(held), _PER_RENEWAL):
            part = held[start : start + _PER_RENEWAL]
            await self._within(
                self._renew(keys=[key for key, _ in part], args=[self._lease_ms, *(lease for _, lease in part)])
            )

    async def _within(self, step: Awaitable[Any]) -> Any:
        """A step within the time-out. Raises Away, and from then on nobody asks until the keeper has seen Redis."""
        try:
            async with asyncio.timeout(2 * self._timeout):
                return await step
        except Exception as error:  # redis-py has others than its own: of sockets, of values, of its event loop
            if not self._away:
                log.warning(
                    "plugin limits: Redis fails (%s); docs/limits.md says what happens until it is back",
                    type(error).__name__,
                )
            self._away = True
            self._wake.set()
            raise Away from error


def _arguments(
    lease: str, milliseconds: int, lines: Sequence[Line], amounts: Amounts, reservation: int | None = None
) -> tuple[list[str], list[Any]]:
    """Keys and arguments as the scripts want them."""
    keys = [f"{_PREFIX}call:{lease}", *(_PREFIX + line.key for line in lines)]
    if reservation is None:
        reservation = int(any(line.is_budget for line in lines))
    packed = _pack([_packed(line, amounts) for line in lines])
    return keys, [lease, milliseconds, reservation, packed]


def _packed(line: Line, amounts: Amounts) -> tuple[str, int, int, int]:
    if line.kind is Kind.SLOTS:
        return "slot", line.limit, amounts.slots, 0
    if line.leaks:
        return "bucket", line.limit, amounts[line.kind], _BUCKET_MS
    return "window", line.limit, amounts[line.kind], int(line.ends * 1000)
