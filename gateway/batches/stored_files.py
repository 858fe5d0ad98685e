"""The files of a store on the disk: found, written and removed so that no crash leaves half of one. Of each there is
`ID.jsonl`, its content, and `ID.json`, what is shown of it; `ID.part` is content that is not complete. For threads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import BinaryIO

import structlog
from pydantic import ValidationError

from gateway.batches.directory import write_whole
from gateway.batches.schemas import FileObject

_TAIL_BYTES = 64 * 1024
_log = structlog.get_logger(__name__)


def found_files(folder: Path, unfinished_ids: Collection[str]) -> tuple[list[FileObject], int]:
    """The files, and the bytes of those that are not complete."""
    found: list[FileObject] = []
    num_part_bytes = 0
    for path in list(folder.glob("file-*")):
        if not _is_of_use(path, unfinished_ids):
            path.unlink()
        elif path.suffix == ".part":
            num_part_bytes += _without_torn_line(path)
        elif path.suffix == ".json" and path.with_suffix(".jsonl").exists():
            found += _read(path)
    return found, num_part_bytes


def copy_synced(source: BinaryIO, part: Path) -> None:
    """The copy outlasts a crash of the system."""
    with part.open("wb") as file:
        shutil.copyfileobj(source, file)
    _sync(part)


def settled_bytes(part: Path) -> int:
    """Of what was written to it, which outlasts a crash then; a file that would be empty is removed."""
    num_bytes = _sync(part) if part.exists() else 0
    if not num_bytes:
        part.unlink(missing_ok=True)
    return num_bytes


def complete(part: Path, shown: bytes) -> None:
    """Makes content a file, of which this is shown."""
    write_whole(part.with_suffix(".json"), shown)
    part.replace(part.with_suffix(".jsonl"))


def remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _is_of_use(path: Path, unfinished_ids: Collection[str]) -> bool:
    """Whether it is part of a file, or becomes one; otherwise a crash has left it."""
    unfinished = path.stem in unfinished_ids
    if path.suffix == ".json":
        return unfinished or path.with_suffix(".jsonl").exists()
    if path.suffix == ".jsonl":
        return path.with_suffix(".json").exists()
    return unfinished and path.suffix == ".part"


def _read(path: Path) -> list[FileObject]:
    """One, or none if it cannot be read."""
    try:
        shown = FileObject.model_validate_json(path.read_bytes())
    except ValidationError as error:
        _log.warning("a stored file cannot be read", path=str(path), because=str(error))
        return []
    return [shown] if shown.id == path.stem else []


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
