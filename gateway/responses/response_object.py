"""The response object at each moment: what was asked for, how far it is, and what came out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gateway.answers.choice import ChoiceDelta
from gateway.answers.token_counts import TokenCounts
from gateway.openai.answer_schemas import Finish
from gateway.responses.output_items import Item
from gateway.responses.schemas import ResponseRequest
from pageloom.errors import PageloomError


class ResponseDraft:
    """One response from its request to its end. `status` is queued, in_progress, completed, incomplete, failed or
    cancelled."""

    def __init__(self, response_id: str, body: ResponseRequest) -> None:
        self.id = response_id
        self.model = body.model
        self.status = "queued" if body.background else "in_progress"
        self.created_at = int(time.time())
        self._asked = _asked(body)
        self._error: dict[str, Any] | None = None
        self._finish: Finish | None = None
        self._cuts_call = False

    def take(self, delta: ChoiceDelta) -> None:
        if delta.finish is not None:
            self._finish = delta.finish
            self._cuts_call = delta.cuts_call

    @property
    def is_cut_off(self) -> bool:
        return self._finish == "length"

    @property
    def cuts_item(self) -> bool:
        """Its last item is not whole; a stop string may end it within a call."""
        return self.is_cut_off or self._cuts_call

    def end(self) -> None:
        self.status = "incomplete" if self.is_cut_off else "completed"

    def fail(self, error: PageloomError) -> None:
        self.status = "failed"
        self._error = {"code": error.code or "server_error", "message": error.message}

    def cancel(self) -> None:
        self.status = "cancelled"

    def to_json(self, items: list[Item], counts: TokenCounts | None) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if self.status in ("completed", "incomplete") else None,
            "status": self.status,
            "error": self._error,
            "incomplete_details": reason,
            "model": self.model,
            "output": [dict(item) for item in items],
            "usage": None if counts is None else _usage(counts),
            **self._asked,
        }


def _usage(counts: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": counts.total,
    }


def _asked(body: ResponseRequest) -> Mapping[str, Any]:
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
    reasoning = body.reasoning
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
