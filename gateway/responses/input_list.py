"""The items that a response was made from, a page at a time."""

from __future__ import annotations

from typing import Any, Literal

from gateway.responses.schemas import InputItem
from gateway.responses.store import StoredResponse
from pageloom.errors import InvalidRequest


def listed_items(
    stored: StoredResponse, *, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """OpenAI's list object. Raises InvalidRequest if `after` is the id of none of the items."""
    items = [_shown(stored, index, item) for index, item in enumerate(stored.conversation)]
    if order == "desc":
        items.reverse()
    if after is not None:
        start = next((index + 1 for index, item in enumerate(items) if item["id"] == after), None)
        if start is None:
            raise InvalidRequest(f"after is {after[:80]!r}, which is the id of none of the items", param="after")
        items = items[start:]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _shown(stored: StoredResponse, index: int, item: InputItem) -> dict[str, Any]:
    shown = item.model_dump(exclude_none=True)
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    # An item that came without an id gets one that stays the same.
    return {"id": f"item_{stored.id.removeprefix('resp_')}_{index}"} | shown
