"""Numbers that several processes count, each its own: in a file that it maps into its memory and all can read."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_NUMBER_BYTES = 8


class SharedNumbers:
    """`own` are this process's, all 0 at first, for one writer. Without a `folder` nobody shares them; in one, those
    with the same name are counted together."""

    def __init__(self, count: int, folder: Path | None, name: str) -> None:
        self._folder = folder
        self._name = name
        self.own: list[float] | memoryview[float] = [0.0] * count
        if folder is not None:
            self.own = _mapped(folder / f"{name}.{os.getpid()}", count)

    def total(self) -> list[float]:
        """Of all processes."""
        if self._folder is None:
            return list(self.own)
        each = [memoryview(path.read_bytes()).cast("d") for path in self._folder.glob(f"{self._name}.*")]
        return [sum(values) for values in zip(*each, strict=True)]


def _mapped(path: Path, count: int) -> memoryview[float]:
    # Nobody may find a file that is not whole.
    fresh = path.with_name(f"new-{path.name}")
    fresh.write_bytes(bytes(_NUMBER_BYTES * count))
    fresh.replace(path)
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
