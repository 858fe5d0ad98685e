"""Which files can be read? A store on disk, bounded in number, bytes and age."""

from __future__ import annotations

import asyncio
import errno
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.batches.directory import BatchDirectory
from gateway.batches.schemas import FileObject, Purpose
from gateway.batches.stored_files import complete, copy_synced, found_files, remove, settled_bytes
from gateway.errors import NotFound
from pageloom.errors import InvalidRequest


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
    """Owned by the event loop: threads only touch the disk, by `stored_files.py`."""

    def __init__(self, directory: BatchDirectory, limits: StoreLimits, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._limits = limits
        self._clock = clock
        self._files: dict[str, FileObject] = {}
        self._num_part_bytes = 0
        self._num_being_added = 0
        # How many batches read a file, which must not go away before they have ended.
        self._num_readers: Counter[str] = Counter()

    async def load(self, unfinished_ids: Collection[str]) -> None:
        """Finds what an earlier process has left; removes what is of no use, but not the unfinished files of batches
        that go on."""
        found, self._num_part_bytes = await asyncio.to_thread(found_files, self._directory.files, unfinished_ids)
        self._files = {file.id: file for file in found}

    async def add(self, source: BinaryIO, num_bytes: int, filename: str, lifetime_s: int | None) -> FileObject:
        """Raises StoreFull."""
        if self._limits.max_files == 0:
            raise StoreFull("this server stores no files", param="file")
        await self._forget()
        if len(self._files) + self._num_being_added >= self._limits.max_files:
            raise StoreFull(f"{len(self._files)} files are stored, which is the most; delete some", param="file")
        self._take_part_bytes(num_bytes)
        self._num_being_added += 1
        file_id = f"file-{uuid.uuid4().hex}"
        part = self._path(file_id, ".part")
        try:
            await asyncio.to_thread(copy_synced, source, part)
            return await self._publish(file_id, num_bytes, filename, "batch", lifetime_s)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            self._num_part_bytes -= num_bytes
            self._num_being_added -= 1

    def get(self, file_id: str) -> FileObject:
        """Raises NotFound."""
        file = self._files.get(file_id)
        if file is None or self._is_too_old(file):
            raise NotFound(f"there is no file {file_id[:80]!r}: it was deleted, or is too old", param="file_id")
        return file

    def content_path(self, file_id: str) -> Path:
        """Raises NotFound."""
        return self._path(self.get(file_id).id, ".jsonl")

    def all(self) -> list[FileObject]:
        """In the order in which they were stored."""
        files = [file for file in self._files.values() if not self._is_too_old(file)]
        return sorted(files, key=lambda file: file.created_at)

    async def delete(self, file_id: str) -> None:
        """Raises NotFound, and InvalidRequest while a batch reads it."""
        self.get(file_id)
        if self._num_readers[file_id]:
            raise InvalidRequest("the file is the input of a batch that has not ended", param="file_id")
        await self._drop([file_id])

    def begin_reading(self, file_id: str) -> None:
        self._num_readers[file_id] += 1

    def end_reading(self, file_id: str) -> None:
        self._num_readers[file_id] -= 1

    def open_output(self, file_id: str) -> OutputFile:
        """To be written, or written on."""
        return OutputFile(file_id, self._path(file_id, ".part"), self._take_part_bytes)

    def unfinished_lines(self, file_id: str) -> Iterator[bytes]:
        """Of an output that was opened. May be read in a thread."""
        with self._path(file_id, ".part").open("rb") as file:
            yield from file

    async def publish_output(self, file_id: str, filename: str, lifetime_s: int | None) -> bool:
        """Makes what was written a file that can be read; whether there is one. It may be published already."""
        if file_id in self._files:
            return True
        num_bytes = await asyncio.to_thread(settled_bytes, self._path(file_id, ".part"))
        if num_bytes:
            await self._publish(file_id, num_bytes, filename, "batch_output", lifetime_s)
        self._num_part_bytes -= num_bytes
        return num_bytes > 0

    async def _publish(
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
        await asyncio.to_thread(complete, self._path(file_id, ".part"), shown.model_dump_json().encode())
        self._files[file_id] = shown
        return shown

    def _take_part_bytes(self, num_bytes: int) -> None:
        stored = self._num_part_bytes + sum(file.bytes for file in self._files.values())
        if stored + num_bytes > self._limits.max_bytes:
            raise StoreFull(
                f"{stored} bytes of files are stored, and {num_bytes} more would be over the limit of "
                f"{self._limits.max_bytes}; delete some",
                param="file",
            )
        self._num_part_bytes += num_bytes

    def _is_too_old(self, file: FileObject) -> bool:
        is_past = file.expires_at is not None and file.expires_at <= self._clock()
        return is_past and not self._num_readers[file.id]

    async def _forget(self) -> None:
        await self._drop([file.id for file in self._files.values() if self._is_too_old(file)])

    async def _drop(self, file_ids: Collection[str]) -> None:
        for file_id in file_ids:
            del self._files[file_id]
        paths = [self._path(file_id, suffix) for file_id in file_ids for suffix in (".json", ".jsonl")]
        await asyncio.to_thread(remove, paths)

    def _path(self, file_id: str, suffix: str) -> Path:
        return self._directory.files / f"{file_id}{suffix}"
