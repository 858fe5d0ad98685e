"""Which grammars stay compiled? Those that were used last, as many as fit into a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

# What a compiled grammar takes is not told. Measured: 100 to 134 times its text for JSON schemas, less for all else,
# and some tens of kilobytes for what is found out while the first texts are matched.
_BYTES_PER_CHAR = 150
_BASE_BYTES = 64 * 1024


def compiled_bytes(grammar: str) -> int:
    """An estimate, rather too high."""
    return _BASE_BYTES + _BYTES_PER_CHAR * len(grammar)


class GrammarCache(Generic[T]):
    """Something for each grammar, by its text. One thread owns it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, T] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, grammar: str) -> T | None:
        found = self._kept.get(grammar)
        if found is not None:
            self._kept.move_to_end(grammar)
        return found

    def add(self, grammar: str, compiled: T) -> None:
        """Lets the least recently used go, the new one itself if it alone is too much."""
        self.drop(grammar)
        self._kept[grammar] = compiled
        self.num_bytes += compiled_bytes(grammar)
        while self.num_bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, grammar: str) -> None:
        if self._kept.pop(grammar, None) is not None:
            self.num_bytes -= compiled_bytes(grammar)
