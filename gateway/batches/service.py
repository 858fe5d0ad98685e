"""The batches of this gateway: made, looked up, cancelled, and gone on with after a restart."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, get_args

import structlog
from pydantic import ValidationError

from gateway.background_tasks import BackgroundTasks
from gateway.batches.directory import BatchDirectory, write_whole
from gateway.batches.file_store import FileStore
from gateway.batches.inner_call import Call
from gateway.batches.run import BatchRun
from gateway.batches.schemas import BatchObject, CreateBatchRequest, Ending, StoredBatch
from gateway.errors import NotFound
from pageloom.errors import InvalidRequest, Overloaded

MAX_UNFINISHED, MAX_ENDED = 100, 1000
MAX_WINDOW_S = 7 * 86_400
_WINDOW = re.compile(r"(\d{1,6})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
P = ParamSpec("P")
_log = structlog.get_logger(__name__)


class BatchService:
    """Owned by the event loop. `urls` are those that lines may name."""

    def __init__(
        self,
        directory: BatchDirectory,
        files: FileStore,
        call: Call,
        background: BackgroundTasks,
        *,
        urls: Collection[str],
        concurrency: int,
        max_line_bytes: int,
    ) -> None:
        self._directory = directory
        self.files = files
        self._call = call
        self._background = background
        self._urls = tuple(urls)
        self._slots = asyncio.Semaphore(concurrency)
        self._max_line_bytes = max_line_bytes
        # In the order in which they were made.
        self._batches: dict[str, StoredBatch] = {}
        # One thread, so that the last state that was written is the last one.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._runs: dict[str, BatchRun] = {}

    async def open(self) -> None:
        """Finds what an earlier process has left, and goes on with it."""
        if not self._directory.persistent:
            return
        batches = await asyncio.to_thread(_found, self._directory.batches)
        self._batches = {batch.shown.id: batch for batch in batches}
        unfinished = [batch for batch in batches if not _ended(batch)]
        await self.files.load({file_id for batch in unfinished for file_id in (batch.output_id, batch.error_id)})
        for batch in unfinished:
            self._start(batch)

    async def close(self) -> None:
        """When none of its tasks is left."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._directory.close)

    async def create(self, body: CreateBatchRequest, tenant: str) -> BatchObject:
        """Raises InvalidRequest, NotFound and Overloaded."""
        if body.endpoint not in self._urls:
            raise InvalidRequest(f"endpoint must be one of {', '.join(self._urls)}", param="endpoint")
        window_s = _window_s(body.completion_window)
        if len(self._runs) >= MAX_UNFINISHED:
            raise Overloaded(f"{MAX_UNFINISHED} batches are under way, which is the most")
        if self.files.get(body.input_file_id).purpose != "batch":
            raise InvalidRequest("input_file_id must be a file of purpose batch", param="input_file_id")
        now = int(time.time())
        shown = BatchObject(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            created_at=now,
            expires_at=now + window_s,
            metadata=body.metadata,
        )
        lifetime = body.output_expires_after
        batch = StoredBatch(
            shown=shown,
            tenant=tenant,
            output_id=f"file-{uuid.uuid4().hex}",
            error_id=f"file-{uuid.uuid4().hex}",
            output_lifetime_s=None if lifetime is None else lifetime.seconds,
        )
        self._batches[shown.id] = batch
        self._start(batch)
        await self._save(batch)
        await self._forget()
        return shown

    def get(self, batch_id: str) -> BatchObject:
        """Raises NotFound."""
        return self._stored(batch_id).shown

    def all(self) -> list[BatchObject]:
        return [batch.shown for batch in self._batches.values()]

    async def cancel(self, batch_id: str) -> BatchObject:
        """Raises NotFound, and InvalidRequest if there is nothing left to cancel."""
        shown = self._stored(batch_id).shown
        if shown.status in ("validating", "in_progress"):
            await self._runs[batch_id].cancel()
        elif shown.status != "cancelling":
            raise InvalidRequest(f"a batch that is {shown.status} cannot be cancelled", param="batch_id")
        return shown

    def _stored(self, batch_id: str) -> StoredBatch:
        if batch_id not in self._batches:
            raise NotFound(f"there is no batch {batch_id[:80]!r}", param="batch_id")
        return self._batches[batch_id]

    def _start(self, batch: StoredBatch) -> None:
        run = BatchRun(batch, self.files, self._call, self._slots, self._save, self._max_line_bytes)
        self._runs[batch.shown.id] = run
        self._background.start(self._run(batch.shown.id, run), batch.shown.id)

    async def _run(self, batch_id: str, run: BatchRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[batch_id]

    async def _save(self, batch: StoredBatch) -> None:
        content = batch.model_dump_json().encode()
        await self._write(write_whole, self._path(batch), content)

    async def _forget(self) -> None:
        ended = [batch for batch in self._batches.values() if _ended(batch)]
        for batch in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._batches[batch.shown.id]
            await self._write(_remove, self._path(batch))

    async def _write(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        call = partial(write, *args, **kwargs)
        await asyncio.get_running_loop().run_in_executor(self._writer, call)

    def _path(self, batch: StoredBatch) -> Path:
        return self._directory.batches / f"{batch.shown.id}.json"


def _found(folder: Path) -> list[StoredBatch]:
    """In the order in which they were made."""
    for unwritten in folder.glob("batch_*.new"):
        unwritten.unlink()
    batches = [batch for path in folder.glob("batch_*.json") if (batch := _read(path)) is not None]
    return sorted(batches, key=lambda batch: batch.shown.created_at)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _read(path: Path) -> StoredBatch | None:
    try:
        return StoredBatch.model_validate_json(path.read_bytes())
    except ValidationError as error:
        _log.warning("a stored batch cannot be read", path=str(path), because=str(error))
        return None


def _ended(batch: StoredBatch) -> bool:
    return batch.shown.status in get_args(Ending)


def _window_s(text: str) -> int:
    match = _WINDOW.fullmatch(text)
    window_s = int(match[1]) * _UNIT_S[match[2]] if match else 0
    if not 0 < window_s <= MAX_WINDOW_S:
        raise InvalidRequest(
            "completion_window must be a number of s, m, h or d such as 24h, at most 7d", param="completion_window"
        )
    return window_s
