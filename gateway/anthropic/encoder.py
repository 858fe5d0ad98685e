"""Deltas -> Anthropic's content blocks, and the events that tell of them."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from gateway.answers.choice import ChoiceDelta
from gateway.answers.token_counts import TokenCounts
from gateway.anthropic.errors import envelope
from gateway.errors import status_of
from pageloom.errors import PageloomError

_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageEncoder:
    """A `stream.StreamEncoder`. `message` is complete after `end`."""

    wants_counts = False

    def __init__(self, model: str, num_prompt_tokens: int) -> None:
        self.message_id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._usage: dict[str, int] = {"input_tokens": num_prompt_tokens, "output_tokens": 0}
        self._blocks: list[dict[str, Any]] = []
        # The kind of the block that grows, and of a tool's also its number.
        self._open: tuple[str, int] | None = None
        self._pieces: list[str] = []
        self._last: ChoiceDelta | None = None
        self._begun = False

    @property
    def message(self) -> dict[str, Any]:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._blocks,
            **self._stop(),
            "usage": self._usage,
        }

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        events = self._begin()
        if delta.finish is not None:
            self._last = delta
        if delta.reasoning:
            events += self._grow("thinking", delta.reasoning)
        if delta.text:
            events += self._grow("text", delta.text)
        for call in delta.tool_calls:
            if self._open != ("tool_use", call.index):
                events += self._close()
                block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                events += self._start(("tool_use", call.index), block)
            if call.arguments:
                self._pieces.append(call.arguments)
                events += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return events

    def end(self, counts: TokenCounts) -> bytes:
        events = self._begin() + self._close()
        self._usage = {
            "input_tokens": counts.prompt - counts.cached,
            "cache_read_input_tokens": counts.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": counts.completion,
        }
        events += _event("message_delta", delta=self._stop(), usage=self._usage)
        return events + _event("message_stop")

    def fail(self, error: PageloomError) -> bytes:
        return _event("error", error=envelope(status_of(error), error.message)["error"])

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return _event("message_start", message=self.message)

    def _grow(self, kind: str, text: str) -> bytes:
        delta_type, field = _DELTAS[kind]
        events = b""
        if self._open != (kind, 0):
            signature = {"signature": ""} if kind == "thinking" else {}
            events = self._close() + self._start((kind, 0), {"type": kind, field: "", **signature})
        self._pieces.append(text)
        return events + self._delta({"type": delta_type, field: text})

    def _start(self, kind: tuple[str, int], block: dict[str, Any]) -> bytes:
        self._open, self._pieces = kind, []
        self._blocks.append(block)
        return _event("content_block_start", index=len(self._blocks) - 1, content_block=dict(block))

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        kind, text, block = self._open[0], "".join(self._pieces), self._blocks[-1]
        if kind == "tool_use":
            block["input"] = _object(text)
        else:
            block[kind] = text
        self._open = None
        return _event("content_block_stop", index=len(self._blocks) - 1)

    def _stop(self) -> dict[str, Any]:
        last = self._last
        if last is None:
            return {"stop_reason": None, "stop_sequence": None}
        if last.finish == "stop" and isinstance(last.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
        return {"stop_reason": reasons.get(last.finish or "", "end_turn"), "stop_sequence": None}


def _object(text: str) -> Any:
    """A call that the end of the answer cut off is no JSON; its text is kept under a name that says so."""
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"incomplete_json": text}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
