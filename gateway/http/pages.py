"""Lists of files, batches and input items, page by page: `after` is the id of the last one seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from pageloom.errors import InvalidRequest

Direction = Literal["asc", "desc"]


class Listed(Protocol):
    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[ItemT]):
    items: list[ItemT]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        return self.items[0].id if self.items else None

    @property
    def last_id(self) -> str | None:
        return self.items[-1].id if self.items else None


def page_of(items: Sequence[ItemT], *, after: str | None, limit: int, order: Direction) -> Page[ItemT]:
    """`items` are in ascending order. Raises InvalidRequest if `after` is none of them."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    first = 0
    if after is not None:
        first = 1 + next((index for index, item in enumerate(ordered) if item.id == after), -1)
        if first == 0:
            raise InvalidRequest(f"after names nothing in this list: {after[:80]!r}", param="after")
    return Page(items=ordered[first : first + limit], has_more=first + limit < len(ordered))
