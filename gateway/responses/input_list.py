"""The items that a response was made from, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.http.pages import Direction, page_of
from gateway.responses.schemas import InputItem
from gateway.responses.store import StoredResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedItem:
    id: str
    shown: dict[str, Any]


def listed_items(stored: StoredResponse, *, after: str | None, limit: int, order: Direction) -> dict[str, Any]:
    """OpenAI's list object. Raises InvalidRequest if `after` is the id of none of the items."""
    items = [_listed(stored, index, item) for index, item in enumerate(stored.conversation)]
    page = page_of(items, after=after, limit=limit, order=order)
    return {
        "object": "list",
        "data": [item.shown for item in page.items],
        "first_id": page.first_id,
        "last_id": page.last_id,
        "has_more": page.has_more,
    }


def _listed(stored: StoredResponse, index: int, item: InputItem) -> _ListedItem:
    shown = item.model_dump(exclude_none=True)
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    # An item that came without an id gets one that stays the same.
    item_id = item.id or f"item_{stored.id.removeprefix('resp_')}_{index}"
    return _ListedItem(id=item_id, shown={"id": item_id} | shown)
