"""Where does a contiguous reservation go? Allocators of ranges, which unlike blocks leave holes that nothing fits."""

from __future__ import annotations

import bisect
from typing import NamedTuple, Protocol


class Region(NamedTuple):
    """`length` tokens of KV memory from `start` on; it may be longer than what was asked for."""

    start: int
    length: int


class AddressSpace(Protocol):
    """KV memory as one line of token slots."""

    @property
    def num_free(self) -> int: ...

    @property
    def longest(self) -> int:
        """The longest region that it can ever give."""
        ...

    def allocate(self, length: int) -> Region | None:
        """None if no hole is long enough."""
        ...

    def free(self, region: Region) -> None: ...


class FirstFit:
    """Takes the lowest hole that is long enough, and joins holes that meet."""

    def __init__(self, num_tokens: int) -> None:
        self.num_free = self.longest = num_tokens
        self._starts = [0]
        self._lengths = [num_tokens]

    def allocate(self, length: int) -> Region | None:
        for i, hole in enumerate(self._lengths):
            if hole >= length:
                start = self._starts[i]
                self._take(i, length)
                self.num_free -= length
                return Region(start, length)
        return None

    def free(self, region: Region) -> None:
        start, length = region
        self.num_free += length
        i = bisect.bisect(self._starts, start)
        if i < len(self._starts) and start + length == self._starts[i]:
            length += self._lengths[i]
            self._drop(i)
        if i and self._starts[i - 1] + self._lengths[i - 1] == start:
            self._lengths[i - 1] += length
        else:
            self._starts.insert(i, start)
            self._lengths.insert(i, length)

    def _take(self, i: int, length: int) -> None:
        self._starts[i] += length
        self._lengths[i] -= length
        if self._lengths[i] == 0:
            self._drop(i)

    def _drop(self, i: int) -> None:
        del self._starts[i], self._lengths[i]


class Buddy:
    """Powers of two only, split in halves and joined with the other half (Knowlton 1965).

    The PagedAttention paper gives its Orca baselines this allocator. Memory that is no power of two starts as several
    that are, the largest first.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_free = num_tokens
        self.longest = 1 << (num_tokens.bit_length() - 1)
        self._free: dict[int, set[int]] = {1 << order: set() for order in range(num_tokens.bit_length())}
        start = 0
        for size in reversed(self._free):
            if num_tokens & size:
                self._free[size].add(start)
                start += size

    def allocate(self, length: int) -> Region | None:
        wanted = 1 << (length - 1).bit_length()
        size = next((size for size, starts in self._free.items() if size >= wanted and starts), None)
        if size is None:
            return None
        # The lowest, so that equal calls give equal places.
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > wanted:
            size //= 2
            self._free[size].add(start + size)
        self.num_free -= size
        return Region(start, size)

    def free(self, region: Region) -> None:
        start, size = region
        self.num_free += size
        while (buddy := start ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        self._free[size].add(start)
