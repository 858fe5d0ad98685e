"""One batch from its input file to its output files: every line is a request to this very gateway, so many at a time
as there are slots, and behind those of clients."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import orjson
import structlog

from gateway.batches.answer_writer import AnswerWriter, line_number
from gateway.batches.file_store import FileStore
from gateway.batches.inner_call import Call
from gateway.batches.schemas import BatchError, BatchErrors, BatchUsage, Ending, EnteredStatus, StoredBatch
from gateway.requests.terms import TENANT_HEADER
from pageloom.batch_lines import BatchLine, LineError, LineRequest, count_lines, encoded, read_lines
from pageloom.errors import PageloomError

MAX_LINES = 50_000
# Behind what clients ask for: a level is worth a minute in the queue (--priority-ageing), so this is most of a day.
PRIORITY = 1000
_MAX_PRIORITY = 2**31 - 1
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_EXPIRED = ("batch_expired", "the completion window passed before this request was answered")
_log = structlog.get_logger(__name__)


class BatchFailed(Exception):
    """The batch as a whole cannot go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BatchRun:
    """`run` takes a batch from the state that it is in to its end, and may be cancelled: a later run of what `save`
    was told last goes on from there. `slots` is shared by all batches."""

    def __init__(
        self,
        batch: StoredBatch,
        files: FileStore,
        call: Call,
        slots: asyncio.Semaphore,
        save: Callable[[StoredBatch], Awaitable[None]],
        max_line_bytes: int,
    ) -> None:
        self._batch = batch
        self._files = files
        self._call = call
        self._slots = slots
        self._save = save
        self._max_line_bytes = max_line_bytes
        # While lines are answered; it ends that when the batch expires, or is cancelled.
        self._window: asyncio.Timeout | None = None
        # Numbers of the lines that have an answer.
        self._done: set[int] = set()
        files.begin_reading(batch.shown.input_file_id)

    async def run(self) -> None:
        shown = self._batch.shown
        try:
            source = self._files.content_path(shown.input_file_id)
            if shown.in_progress_at is None:
                shown.request_counts.total = await asyncio.to_thread(self._count_lines, source)
            ending = self._batch.ending or await self._answer_all(source)
        except Exception as error:
            shown.errors = BatchErrors(data=[self._failure(error)])
            ending = "failed"
        await self._finish(ending)

    async def cancel(self) -> None:
        """Answers that are under way are given up; `run` finishes with what there is."""
        if self._window is not None:
            self._window.reschedule(asyncio.get_running_loop().time())
        await self._become("cancelling")

    def _failure(self, error: Exception) -> BatchError:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, BatchFailed):
            return BatchError(code=error.code, message=str(error))
        if isinstance(error, PageloomError):
            return BatchError(code=error.code or "batch_failed", message=error.message)
        _log.error("batch failed", batch_id=self._batch.shown.id, exc_info=error)
        reason = error.strerror if isinstance(error, OSError) else None
        return BatchError(code="batch_failed", message=reason or "internal error")

    def _count_lines(self, path: Path) -> int:
        with path.open("rb") as source:
            num_lines = count_lines(source, self._max_line_bytes)
        if num_lines == 0:
            raise BatchFailed("empty_file", "the input file has no requests")
        if num_lines > MAX_LINES:
            raise BatchFailed("too_many_requests", f"the input file has {num_lines} requests; {MAX_LINES} are the most")
        return num_lines

    async def _answer_all(self, source: Path) -> Ending:
        with (
            closing(self._files.open_output(self._batch.output_id)) as output,
            closing(self._files.open_output(self._batch.error_id)) as errors,
        ):
            await asyncio.to_thread(self._recall)
            if self._batch.shown.status == "validating":
                await self._become("in_progress")
            answers = AnswerWriter(self._batch, output, errors, self._done)
            if self._cancelling():
                return "cancelled"
            if await self._within_window(source, answers):
                return "completed"
            if self._cancelling():
                return "cancelled"
            await self._expire(source, answers)
            return "expired"

    def _cancelling(self) -> bool:
        return self._batch.shown.status == "cancelling"

    async def _within_window(self, source: Path, answers: AnswerWriter) -> bool:
        """Whether all lines were answered before the batch expired or was cancelled."""
        try:
            async with asyncio.timeout(max(0.0, self._batch.shown.expires_at - time.time())) as self._window:
                await self._answer_lines(source, answers)
        except TimeoutError:
            return False
        finally:
            self._window = None
        return True

    async def _answer_lines(self, source: Path, answers: AnswerWriter) -> None:
        async with asyncio.TaskGroup() as group:
            async for line in self._lines_left(source):
                if isinstance(line.content, LineError):
                    answers.refuse(line.number, line.content)
                    continue
                await self._slots.acquire()
                task = group.create_task(self._answer(line.number, line.content, answers))
                # Not in the task, which may be cancelled before it begins.
                task.add_done_callback(lambda _: self._slots.release())

    async def _answer(self, number: int, request: LineRequest, answers: AnswerWriter) -> None:
        body = encoded({**request.body, "priority": _behind(request.body.get("priority"))})
        headers = {TENANT_HEADER: self._batch.tenant} if self._batch.tenant else {}
        pause_s = _FIRST_PAUSE_S
        while True:
            answer = await self._call(request.url, body, headers)
            if answer.status != 503:
                answers.take(number, request.custom_id, answer)
                return
            # The queue is full, or no worker is there: not for ever, and the window ends it.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _expire(self, source: Path, answers: AnswerWriter) -> None:
        async for line in self._lines_left(source):
            if isinstance(line.content, LineError):
                answers.refuse(line.number, line.content)
            else:
                answers.refuse(line.number, LineError(*_EXPIRED, line.content.custom_id))

    async def _lines_left(self, source: Path) -> AsyncIterator[BatchLine]:
        """Those without an answer."""
        lines = self._lines(source)
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            if line.number not in self._done:
                yield line

    def _lines(self, path: Path) -> Iterator[BatchLine]:
        with path.open("rb") as source:
            yield from read_lines(source, [self._batch.shown.endpoint], self._max_line_bytes)

    def _recall(self) -> None:
        """What an earlier run has answered."""
        shown = self._batch.shown
        counts = shown.request_counts
        counts.completed, counts.failed, shown.usage = 0, 0, BatchUsage()
        for file_id, is_output in ((self._batch.output_id, True), (self._batch.error_id, False)):
            for text in self._files.unfinished_lines(file_id):
                answer = orjson.loads(text)
                self._done.add(line_number(answer["id"]))
                if is_output:
                    counts.completed += 1
                    shown.usage.add(answer["response"]["body"])
                else:
                    counts.failed += 1

    async def _finish(self, ending: Ending) -> None:
        batch, shown = self._batch, self._batch.shown
        batch.ending = ending
        if ending in ("completed", "expired"):
            await self._become("finalizing")
        else:
            await self._save(batch)
        shown.output_file_id = await self._published(batch.output_id, "output")
        shown.error_file_id = await self._published(batch.error_id, "error")
        self._files.end_reading(shown.input_file_id)
        await self._become(ending)

    async def _published(self, file_id: str, kind: str) -> str | None:
        """The file's id, if anything was written to it."""
        filename = f"{self._batch.shown.id}_{kind}.jsonl"
        published = await self._files.publish_output(file_id, filename, self._batch.output_lifetime_s)
        return file_id if published else None

    async def _become(self, status: EnteredStatus) -> None:
        self._batch.shown.enter(status, int(time.time()))
        await self._save(self._batch)


def _behind(priority: object) -> object:
    """That of a request among its batch's, as one among all. What is no priority stays so, and is refused later."""
    if priority is None:
        return PRIORITY
    if isinstance(priority, int) and not isinstance(priority, bool) and priority <= _MAX_PRIORITY:
        return min(priority + PRIORITY, _MAX_PRIORITY)
    return priority
