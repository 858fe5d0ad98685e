"""Which files can be read? A store on disk, bounded in number, bytes and age."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog
from pydantic import ValidationError

from gateway.batches.directory import BatchDirectory, write_whole
from gateway.batches.schemas import FileObject, Purpose
from gateway.errors import NotFound
from pageloom.errors import InvalidRequest

_TAIL_BYTES = 64 * 1024
_log = structlog.get_logger(__name__)


class StoreFull(InvalidRequest):
    """The store's limits leave no room."""

    code = "storage_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """`max_bytes` counts also what running batches have written; `ttl_s` is the longest that a file is kept."""

    max_files: int
    max_bytes: int
    ttl_s: float


class OutputFile:
    """A file of a batch that is being written, line by line; nobody else sees it before it is published."""

    def __init__(self, file_id: str, path: Path, take_bytes: Callable[[int], None]) -> None:
        self.id = file_id
        self._take_bytes = take_bytes
        self._file = path.open("ab", buffering=0)
        self._num_bytes = self._file.tell()

    def append(self, line: bytes) -> None:
        """Raises StoreFull, and OSError if the disk is full. The whole line is with the system afterwards, or nothing
        of it."""
        self._take_bytes(len(line) + 1)
        if self._file.write(line + b"\n") != len(line) + 1:
            self._file.truncate(self._num_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._num_bytes += len(line) + 1

    def close(self) -> None:
        self._file.close()


class FileStore:
    """Of each file there is `ID.jsonl`, its content, and `ID.json`, what is shown of it; `ID.part` is content that is
    not complete. Its methods touch the disk and may be called from any thread."""

    def __init__(self, directory: BatchDirectory, limits: StoreLimits, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._limits = limits
        self._clock = clock
        self._lock = threading.RLock()
        self._files: dict[str, FileObject] = {}
        self._num_part_bytes = 0
        self._num_being_added = 0
        # How many batches read a file, which must not go away before they have ended.
        self._num_readers: Counter[str] = Counter()

    def load(self, unfinished_ids: Collection[str]) -> None:
        """Finds what an earlier process has left; removes what is of no use, but not the unfinished files of batches
        that go on."""
        with self._lock:
            for path in list(self._directory.files.glob("file-*")):
                if not _is_of_use(path, unfinished_ids):
                    path.unlink()
                elif path.suffix == ".part":
                    self._num_part_bytes += _without_torn_line(path)
                elif path.suffix == ".json" and path.with_suffix(".jsonl").exists():
                    self._load_one(path)

    def _load_one(self, path: Path) -> None:
        try:
            shown = FileObject.model_validate_json(path.read_bytes())
        except ValidationError as error:
            _log.warning("a stored file cannot be read", path=str(path), because=str(error))
            return
        if shown.id == path.stem:
            self._files[shown.id] = shown

    def add(self, source: BinaryIO, num_bytes: int, filename: str, lifetime_s: int | None) -> FileObject:
        """Raises StoreFull."""
        file_id = _new_id()
        if self._limits.max_files == 0:
            raise StoreFull("this server stores no files", param="file")
        with self._lock:
            self._forget()
            if len(self._files) + self._num_being_added >= self._limits.max_files:
                raise StoreFull(f"{len(self._files)} files are stored, which is the most; delete some", param="file")
            self._take_part_bytes(num_bytes)
            self._num_being_added += 1
        try:
            with self._path(file_id, ".part").open("wb") as file:
                shutil.copyfileobj(source, file)
            _sync(self._path(file_id, ".part"))
            return self._publish(file_id, num_bytes, filename, "batch", lifetime_s)
        except BaseException:
            self._path(file_id, ".part").unlink(missing_ok=True)
            raise
        finally:
            with self._lock:
                self._num_part_bytes -= num_bytes
                self._num_being_added -= 1

    def get(self, file_id: str) -> FileObject:
        """Raises NotFound."""
        with self._lock:
            self._forget()
            if file_id not in self._files:
                raise NotFound(f"there is no file {file_id[:80]!r}: it was deleted, or is too old", param="file_id")
            return self._files[file_id]

    def content_path(self, file_id: str) -> Path:
        """Raises NotFound."""
        return self._path(self.get(file_id).id, ".jsonl")

    def all(self) -> list[FileObject]:
        """In the order in which they were stored."""
        with self._lock:
            self._forget()
            return sorted(self._files.values(), key=lambda file: file.created_at)

    def delete(self, file_id: str) -> None:
        """Raises NotFound, and InvalidRequest while a batch reads it."""
        with self._lock:
            self.get(file_id)
            if self._num_readers[file_id]:
                raise InvalidRequest("the file is the input of a batch that has not ended", param="file_id")
            self._drop(file_id)

    def begin_reading(self, file_id: str) -> None:
        with self._lock:
            self._num_readers[file_id] += 1

    def end_reading(self, file_id: str) -> None:
        with self._lock:
            self._num_readers[file_id] -= 1

    def open_output(self, file_id: str) -> OutputFile:
        """To be written, or written on."""
        return OutputFile(file_id, self._path(file_id, ".part"), self._take_part_bytes)

    def unfinished_lines(self, file_id: str) -> Iterator[bytes]:
        """Of an output that was opened."""
        with self._path(file_id, ".part").open("rb") as file:
            yield from file

    def publish_output(self, file_id: str, filename: str, lifetime_s: int | None) -> bool:
        """Makes what was written a file that can be read; whether there is one. It may be published already."""
        part = self._path(file_id, ".part")
        with self._lock:
            if file_id in self._files:
                return True
        num_bytes = _sync(part) if part.exists() else 0
        if num_bytes:
            self._publish(file_id, num_bytes, filename, "batch_output", lifetime_s)
        else:
            part.unlink(missing_ok=True)
        with self._lock:
            self._num_part_bytes -= num_bytes
        return num_bytes > 0

    def _publish(
        self, file_id: str, num_bytes: int, filename: str, purpose: Purpose, lifetime_s: int | None
    ) -> FileObject:
        now = self._clock()
        lifetime = self._limits.ttl_s if lifetime_s is None else min(lifetime_s, self._limits.ttl_s)
        shown = FileObject(
            id=file_id,
            bytes=num_bytes,
            created_at=int(now),
            expires_at=int(now + lifetime),
            filename=filename,
            purpose=purpose,
        )
        write_whole(self._path(file_id, ".json"), shown.model_dump_json().encode())
        self._path(file_id, ".part").replace(self._path(file_id, ".jsonl"))
        with self._lock:
            self._files[file_id] = shown
        return shown

    def _take_part_bytes(self, num_bytes: int) -> None:
        with self._lock:
            stored = self._num_part_bytes + sum(file.bytes for file in self._files.values())
            if stored + num_bytes > self._limits.max_bytes:
                raise StoreFull(
                    f"{stored} bytes of files are stored, and {num_bytes} more would be over the limit of "
                    f"{self._limits.max_bytes}; delete some",
                    param="file",
                )
            self._num_part_bytes += num_bytes

    def _forget(self) -> None:
        now = self._clock()
        for file in list(self._files.values()):
            if file.expires_at is not None and file.expires_at <= now and not self._num_readers[file.id]:
                self._drop(file.id)

    def _drop(self, file_id: str) -> None:
        del self._files[file_id]
        for suffix in (".json", ".jsonl"):
            self._path(file_id, suffix).unlink(missing_ok=True)

    def _path(self, file_id: str, suffix: str) -> Path:
        return self._directory.files / f"{file_id}{suffix}"


def _new_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def _is_of_use(path: Path, unfinished_ids: Collection[str]) -> bool:
    """Whether it is part of a file, or becomes one; otherwise a crash has left it."""
    unfinished = path.stem in unfinished_ids
    if path.suffix == ".json":
        return unfinished or path.with_suffix(".jsonl").exists()
    if path.suffix == ".jsonl":
        return path.with_suffix(".json").exists()
    return unfinished and path.suffix == ".part"


def _sync(path: Path) -> int:
    """Makes the content outlast a crash of the system; its bytes."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _without_torn_line(path: Path) -> int:
    """Cuts what a crash left of a last line; the bytes that stay."""
    end = path.stat().st_size
    with path.open("rb+") as file:
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
    return end
