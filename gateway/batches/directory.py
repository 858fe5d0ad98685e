"""Where do files and batches lie? In one directory, owned by one process; by default a temporary one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from pageloom.errors import StartupError

_LOCK_NAME = "lock"


class BatchDirectory:
    """Has the folders `files` and `batches`. A temporary one is made when the first of them is asked for."""

    def __init__(self, configured: str | None) -> None:
        """Raises StartupError if the directory cannot be used, or another process uses it."""
        self._root: Path | None = None
        self._lock: IO[bytes] | None = None
        self.persistent = configured is not None
        if configured is not None:
            self._root = Path(configured)
            try:
                self._make_folders(self._root)
                self._lock = (self._root / _LOCK_NAME).open("ab")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise StartupError(f"--batch-dir {configured} is used by another gateway") from None
            except OSError as error:
                self.close()
                reason = os.strerror(error.errno or 0).lower()
                raise StartupError(f"--batch-dir {configured} cannot be used: {reason}") from None

    @property
    def files(self) -> Path:
        return self._made_root() / "files"

    @property
    def batches(self) -> Path:
        return self._made_root() / "batches"

    def close(self) -> None:
        """Gives the directory up; a temporary one is removed."""
        if self._lock is not None:
            self._lock.close()
        if not self.persistent and self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _made_root(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="pageloom-batches-"))
            self._make_folders(self._root)
        return self._root

    def _make_folders(self, root: Path) -> None:
        # What users send is for nobody else to read.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in ("files", "batches"):
            (root / folder).mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Whoever reads `path` finds the old content or the new, also after a crash."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
