"""Who goes first? A collection kept in order, for the queue and for what is bound to a worker."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class HasOrder(Protocol):
    """Anything with a unique place; the smallest goes first."""

    @property
    def order(self) -> tuple[float, int, int]: ...


T = TypeVar("T", bound=HasOrder)


def _order(item: HasOrder) -> tuple[float, int, int]:
    return item.order


class Ordered(Generic[T]):
    """A sorted list: it is short, and moving pointers costs less than a tree."""

    def __init__(self) -> None:
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    def last_first(self) -> Iterator[T]:
        return reversed(self._items)

    def index(self, item: T) -> int:
        """Where the item is, or would be if it were in it."""
        return bisect_left(self._items, item.order, key=_order)

    def add(self, item: T) -> None:
        insort(self._items, item, key=_order)

    def remove(self, item: T) -> None:
        """The item must be in it."""
        index = self.index(item)
        assert self._items[index] is item
        del self._items[index]
