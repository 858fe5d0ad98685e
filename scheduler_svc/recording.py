"""What did the core see and answer? A core that tells every call to a sink, and a file that takes it in."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from pageloom import __version__
from pageloom.errors import StartupError
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from pageloom.requests import GenerateRequest
from pageloom.wire import record
from pageloom.wire.record import RecordedCall, RecordingHeader
from scheduler_svc.core import Committed, Ending, Limits, Scheduler

log = structlog.get_logger()

P = ParamSpec("P")
R = TypeVar("R")

# What a process that is killed may lose of its recording.
_FLUSH_INTERVAL_S = 1.0
# What may wait for a disk that is too slow before the recording is given up.
_MAX_PENDING_BYTES = 256 << 20
# What is still missing at the end gets so long to be written.
_CLOSE_TIMEOUT_S = 10.0


class RecordingScheduler(Scheduler):
    """A core that hands each call, with what it answered or raised, to `sink` before the caller has the answer.

    The sink says whether it takes any more. Questions that change nothing (`stats`, `timelines`) are not recorded.
    """

    def __init__(self, limits: Limits, sink: Callable[[RecordedCall], bool]) -> None:
        super().__init__(limits)
        self._sink: Callable[[RecordedCall], bool] | None = sink

    def attach(self, hello: WorkerHello, epoch: int, now: float) -> list[Ending]:
        return self._told(super().attach, record.attach_to_proto, _put_endings, hello, epoch, now)

    def drain(self, worker_id: str, now: float) -> None:
        return self._told(super().drain, record.drain_to_proto, _put_nothing, worker_id, now)

    def abandon(self, worker_id: str, now: float) -> list[Ending]:
        return self._told(super().abandon, record.abandon_to_proto, _put_endings, worker_id, now)

    def submit(self, request: GenerateRequest, now: float) -> tuple[int, ...]:
        return self._told(super().submit, record.submit_to_proto, _put_keys, request, now)

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = (), *, now: float) -> list[Ending]:
        return self._told(super().cancel, record.cancel_to_proto, _put_endings, request_id, choice_indexes, now=now)

    def end_all(self, reason: str, now: float) -> list[Ending]:
        return self._told(super().end_all, record.end_all_to_proto, _put_endings, reason, now)

    def expire(self, now: float) -> list[Ending]:
        return self._told(super().expire, record.expire_to_proto, _put_endings, now)

    def plan(self, worker_id: str, now: float) -> BatchPlan | None:
        return self._told(super().plan, record.plan_call_to_proto, _put_plan, worker_id, now)

    def commit(self, worker_id: str, result: StepResult, now: float) -> Committed:
        return self._told(super().commit, record.commit_to_proto, _put_committed, worker_id, result, now)

    def _told(
        self,
        method: Callable[P, R],
        describe: Callable[P, RecordedCall],
        put_outcome: Callable[..., None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        if self._sink is None:
            return method(*args, **kwargs)
        try:
            outcome = method(*args, **kwargs)
        except Exception as error:
            # Also one that the core should never raise: that is the recording one wants most.
            self._put(describe, partial(_put_error, outcome=error), *args, **kwargs)
            raise
        self._put(describe, partial(put_outcome, outcome=outcome), *args, **kwargs)
        return outcome

    def _put(
        self,
        describe: Callable[P, RecordedCall],
        put_outcome: Callable[[RecordedCall], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        assert self._sink is not None
        try:
            call = describe(*args, **kwargs)
            put_outcome(call)
            if self._sink(call):
                return
        except Exception:
            # The core has acted already, so its caller must have the answer.
            log.exception("the recording ends here: a call cannot be written down")
        self._sink = None


def recording_header(limits: Limits, unix_offset_s: float = 0.0) -> RecordingHeader:
    """What a recording of a core with these limits begins with."""
    return record.header_to_proto(dataclasses.asdict(limits), pageloom_version=__version__, unix_offset_s=unix_offset_s)


class RecordingFile:
    """Writes a recording, with its header first, from a thread of its own, so that no step waits for a disk.

    What cannot be written must not stop the service: it is said once, and the recording ends there. A file that was
    there before is kept as `path`.old. Raises StartupError if the file cannot be made.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        # The core's clock is the driver's.
        header = recording_header(limits, unix_offset_s=time.time() - time.monotonic())
        try:
            # Only a file: a pipe or device stays where it is.
            if path.is_file():
                os.replace(path, f"{path}.old")
            self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise StartupError(f"--record: cannot write {path}: {error.strerror}") from None
        self._recording = True
        # One thread appends, the other takes: each of a deque's ends needs no lock.
        self._pending: deque[bytes] = deque([record.delimited(header)])
        # Each counter has one writer: the one thread that appends, the other that takes.
        self._num_put_bytes = self._num_taken_bytes = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="recording", daemon=True)
        self._thread.start()
        log.info("recording; the file holds prompts and outputs as token ids", path=str(path))

    def put(self, call: RecordedCall) -> bool:
        """Takes a call in; False if the recording has ended.

        Encodes it here: the other thread would only compete for the interpreter, for longer at a time.
        """
        data = record.delimited(call)
        self._num_put_bytes += len(data)
        self._pending.append(data)
        if self._num_put_bytes - self._num_taken_bytes > _MAX_PENDING_BYTES:
            self._give_up("the disk is too slow")
        return self._recording

    def close(self) -> None:
        """Writes what is pending and closes the file."""
        self._closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _write_until_closed(self) -> None:
        try:
            with self._file:
                while not self._closing.wait(_FLUSH_INTERVAL_S):
                    self._write_pending()
                self._write_pending()
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _write_pending(self) -> None:
        chunk = memoryview(b"".join(_taken(self._pending)))
        self._num_taken_bytes += len(chunk)
        while chunk:
            # A nearly full disk may take less than it was given.
            chunk = chunk[self._file.write(chunk) :]

    def _give_up(self, reason: str) -> None:
        if self._recording:
            self._recording = False
            self._pending.clear()
            log.error("the recording ends here", path=str(self._path), reason=reason)


def _taken(pending: deque[bytes]) -> Iterable[bytes]:
    # Until it is empty; the other thread may empty it too, when it gives up.
    with contextlib.suppress(IndexError):
        while True:
            yield pending.popleft()


def _put_error(call: RecordedCall, outcome: Exception) -> None:
    call.outcome.error.type, call.outcome.error.message = type(outcome).__name__, str(outcome)


def _put_nothing(call: RecordedCall, outcome: None) -> None:
    pass


def _put_plan(call: RecordedCall, outcome: BatchPlan | None) -> None:
    if outcome is not None:
        record.put_plan(call, outcome)


def _put_endings(call: RecordedCall, outcome: list[Ending]) -> None:
    record.put_endings(call, [(ending.request_id, ending.event) for ending in outcome])


def _put_keys(call: RecordedCall, outcome: tuple[int, ...]) -> None:
    call.outcome.keys.extend(outcome)


def _put_committed(call: RecordedCall, outcome: Committed) -> None:
    tokens = outcome.tokens
    call.outcome.num_tokens = len(tokens.keys)
    if len(tokens.keys):
        call.outcome.tokens_crc32 = _crc32(tokens.keys, tokens.indexes, tokens.token_ids)
    call.outcome.num_scored_tokens = sum(len(scores.logprobs.logprobs) for scores in outcome.prompt_logprobs)
    call.outcome.ignored = outcome.facts is None
    _put_endings(call, outcome.endings)


def _crc32(*columns: NDArray[np.int64]) -> int:
    checksum = 0
    for column in columns:
        checksum = zlib.crc32(np.ascontiguousarray(column, "<i8").tobytes(), checksum)
    return checksum
