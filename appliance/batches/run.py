"""Works on one batch: checks its lines, has them answered, and writes what came of them into files.

    validating -> failed | in_progress -> finalizing -> completed | expired, and cancelling -> cancelled

A line is finished when its answer is in the database, in the same transaction in which it is counted; so whoever goes
on after a crash does no finished line again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec

from appliance.batches import lines, results
from appliance.batches.lines import Line, Problem
from appliance.batches.results import Answered, Result, TokenCounts
from appliance.errors import ModelNotFound
from appliance.http.request_id import new_request_id
from appliance.models.registry import Models
from appliance.storage import files, request_batches
from appliance.storage.blobs import BlobStore, BlobWriter
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now
from appliance.storage.tables import File
from appliance.storage.tables.batches import Batch, BatchResult
from appliance.types import Principal, stored_principal

Ask = Callable[[str, bytes, Principal, str], Awaitable[Answered]]
"""``await ask(path, body, principal, request_id)``: have a route answer a body."""
_AGAIN = (429, 503)
"""Statuses after which another try may do better."""
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_PAGE = 50


@dataclass(frozen=True)
class Means:
    """What all batches of a process share. ``slots`` bounds the lines that are answered at once."""

    database: Database
    blobs: BlobStore
    models: Models
    ask: Ask
    slots: asyncio.Semaphore
    concurrency: int
    max_requests: int
    max_line_bytes: int


@dataclass
class BatchRun:
    """One batch that this process holds."""

    means: Means
    batch: Batch
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: list[Result] = field(default_factory=list)
    _recording: asyncio.Lock = field(default_factory=asyncio.Lock)

    def cancel(self) -> None:
        """Answer no more lines; what was answered is written."""
        self._cancelled.set()

    async def run(self) -> None:
        """Bring the batch to its end. Raises LeaseLost when another process has taken it over."""
        try:
            if self.batch.status == "validating":
                await self._validate()
            if self.batch.status == "in_progress":
                await self._answer_lines()
            if self.batch.status != "failed":
                await self._write_files()
        except* FileNotFoundError:
            await self._fail([Problem("input_file_missing", "the bytes of the input file are gone; upload it again")])

    # -- lines ---------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        checked = await asyncio.to_thread(
            lines.check,
            self.means.blobs.path(self.batch.input_file_id),
            self.batch.endpoint,
            self.means.max_line_bytes,
            self.means.max_requests,
        )
        problems = checked.problems or self._unknown_model(checked.model or "")
        if problems:
            await self._fail(problems)
            return
        async with self.means.database.session() as session:
            await request_batches.move(
                session, self.batch, "validating", "in_progress", total=checked.total, model=checked.model
            )

    def _unknown_model(self, name: str) -> list[Problem]:
        try:
            self.means.models.resolve(name, self._principal)
        except ModelNotFound as error:
            return [Problem("model_not_found", str(error), None, "body.model")]
        return []

    async def _fail(self, problems: Sequence[Problem]) -> None:
        async with self.means.database.session() as session:
            await request_batches.finish(
                session, self.batch, "failed", [], errors=[msgspec.to_builtins(problem) for problem in problems]
            )
        self.batch.status = "failed"

    async def _answer_lines(self) -> None:
        """All lines that are left, until there are none, the time is over, or a client cancels."""
        async with self.means.database.session(write=False) as session:
            done = await request_batches.done(session, self.batch.id)
        answering = asyncio.create_task(self._answer_all(done))
        cancelling = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait(
                (answering, cancelling),
                timeout=max(0, self.batch.expires_at - now()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            over = answering.done()
            for task in (answering, cancelling):
                task.cancel()
            await asyncio.gather(answering, cancelling, return_exceptions=True)
            if not over:
                await self._keep_answers()
        if over:
            answering.result()
        await self._finalize(expired=not over and not self._cancelled.is_set())

    async def _answer_all(self, done: set[int]) -> None:
        """Few at once: a line that waits for its next try keeps its place, so that a full server is not asked more."""
        places = asyncio.Semaphore(self.means.concurrency)
        async with asyncio.TaskGroup() as group:
            async for line in self._left(done):
                await places.acquire()
                task = group.create_task(self._answer(line))
                task.add_done_callback(lambda _: places.release())

    async def _left(self, done: set[int]) -> AsyncIterator[Line]:
        path = self.means.blobs.path(self.batch.input_file_id)
        found = lines.groups(path, self.means.max_line_bytes, done)
        while group := await asyncio.to_thread(next, found, None):
            for line in group:
                yield line

    async def _answer(self, line: Line) -> None:
        wait = _FIRST_WAIT
        request_id = new_request_id()
        while True:
            async with self.means.slots:
                reply = await self.means.ask(self.batch.endpoint, line.body, self._principal, request_id)
            if reply.status not in _AGAIN or not reply.again:
                break
            await asyncio.sleep(min(_LONGEST_WAIT, max(wait, reply.retry_after or 0)) * random.uniform(0.8, 1.2))  # noqa: S311
            wait = min(_LONGEST_WAIT, wait * 2)
        await self._record(results.answered(line.number, line.custom_id, request_id, reply))

    async def _record(self, result: Result) -> None:
        """Keep a finished line, also when no more are wanted: its answer was made, and its tokens were used."""
        self._pending.append(result)
        await asyncio.shield(self._keep_answers())

    async def _keep_answers(self) -> None:
        """Those that come while a transaction runs go into the next one together."""
        async with self._recording:
            if group := tuple(self._pending):
                await self._commit(group)
                del self._pending[: len(group)]

    async def _commit(self, group: Sequence[Result]) -> None:
        rows = [
            BatchResult(batch_id=self.batch.id, tenant=self.batch.tenant, line=r.line, ok=r.ok, output=r.output)
            for r in group
        ]
        async with self.means.database.session() as session:
            await request_batches.record(session, self.batch, rows, _sums(group))

    @property
    def _principal(self) -> Principal:
        return stored_principal(self.batch.principal)

    # -- the end -------------------------------------------------------------------------------------------

    async def _finalize(self, *, expired: bool) -> None:
        if expired:
            await self._expire_lines()
        times = {"expired_at": now()} if expired else {}
        async with self.means.database.session() as session:
            await request_batches.move(session, self.batch, "in_progress", "finalizing", times=times)

    async def _expire_lines(self) -> None:
        async with self.means.database.session(write=False) as session:
            done = await request_batches.done(session, self.batch.id)
        path = self.means.blobs.path(self.batch.input_file_id)
        found = lines.groups(path, self.means.max_line_bytes, done)
        while group := await asyncio.to_thread(next, found, None):
            await self._commit([results.expired(line.number, line.custom_id) for line in group])

    async def _write_files(self) -> None:
        """The output file and the error file, neither if it were empty; then the batch is over."""
        async with AsyncExitStack() as held:
            outputs = {ok: held.enter_context(self.means.blobs.writer()) for ok in (True, False)}
            last = 0
            while page := await self._page(last):
                for row in page:
                    await outputs[row.ok].write(row.output)
                last = page[-1].line
            rows = {ok: await self._file(ok, writer) for ok, writer in outputs.items() if writer.size}
            await self._end(rows)

    async def _page(self, last: int) -> Sequence[BatchResult]:
        async with self.means.database.session(write=False) as session:
            return await request_batches.results(session, self.batch.id, last, _PAGE)

    async def _file(self, ok: bool, writer: BlobWriter) -> File:
        file_id = new_id("file-")
        await writer.commit(file_id, scan=False)
        row = files.new(
            file_id,
            f"{self.batch.id}_{'output' if ok else 'error'}.jsonl",
            "batch_output",
            size=writer.size,
            sha256=writer.sha256,
            media_type="application/jsonl",
            user=self.batch.user,
            kept_seconds=self.batch.output_seconds,
        )
        row.tenant = self.batch.tenant
        return row

    async def _end(self, rows: Mapping[bool, File]) -> None:
        status = {"cancelling": "cancelled"}.get(self.batch.status) or (
            "expired" if "expired_at" in self.batch.times else "completed"
        )
        ids = {name: rows[ok].id for ok, name in ((True, "output_file_id"), (False, "error_file_id")) if ok in rows}
        try:
            async with self.means.database.session() as session:
                await request_batches.finish(session, self.batch, status, list(rows.values()), **ids)
        except BaseException:
            for row in rows.values():
                self.means.blobs.remove(row.id)
            raise
        self.batch.status = status


def _sums(group: Sequence[Result]) -> dict[str, int]:
    names = TokenCounts.__struct_fields__
    return {name: sum(getattr(result.tokens, name) for result in group) for name in names}
