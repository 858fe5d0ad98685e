"""Deltas -> the output items of a response and the events that tell of them, in OpenAI's order. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from gateway.answers.choice import ChoiceDelta
from gateway.openai.logprobs import chat_logprobs
from pageloom.parsing.tool_calls import ToolCallDelta
from pageloom.tokenizer import Tokenizer

# The types of calls, and the member that has what the tool gets.
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
Item = dict[str, Any]
# An event's fields beside its number: {"type": "response.…", …}.
Event = dict[str, Any]


class OutputItems:
    """`items` are complete once `finish` was read to its end; until then the last one grows."""

    def __init__(self, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self.items: list[Item] = []
        # The type of the item that grows, and of a call its number too.
        self._open: tuple[str, int] | None = None
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        # Of tokens that came before it was known what they are the beginning of.
        self._early_logprobs: list[dict[str, Any]] = []

    def take(self, delta: ChoiceDelta) -> Iterator[Event]:
        if delta.reasoning:
            yield from self._grow_reasoning(delta.reasoning)
        if delta.text or (self._has_logprobs(delta) and self._open == ("message", 0)):
            yield from self._grow_message(delta)
        elif self._has_logprobs(delta) and self._open is None:
            self._early_logprobs += self._logprobs_of(delta)
        for call in delta.tool_calls:
            yield from self._grow_call(call)

    def finish(self, *, cut_off: bool = False) -> Iterator[Event]:
        """An answer without anything in it is an empty message. `cut_off`: the last item may be so in the middle."""
        if not self.items:
            yield from self._open_message()
        yield from self._close("incomplete" if cut_off else "completed")

    def _grow_reasoning(self, text: str) -> Iterator[Event]:
        if self._open != ("reasoning", 0):
            yield from self._close()
            yield from self._begin("reasoning", {"type": "reasoning", "id": _id("rs"), "summary": [], "content": []})
            yield self._part_event("response.content_part.added", part=_reasoning_part(""))
        self._text.append(text)
        yield self._part_event("response.reasoning_text.delta", delta=text)

    def _grow_message(self, delta: ChoiceDelta) -> Iterator[Event]:
        if self._open != ("message", 0):
            yield from self._open_message()
        self._text.append(delta.text)
        logprobs = self._early_logprobs + self._logprobs_of(delta)
        self._early_logprobs = []
        self._logprobs += logprobs
        yield self._part_event("response.output_text.delta", delta=delta.text, logprobs=logprobs)

    def _grow_call(self, call: ToolCallDelta) -> Iterator[Event]:
        kind = "custom_tool_call" if call.is_custom else "function_call"
        member = _CALLS[kind]
        if self._open != (kind, call.index):
            yield from self._close()
            prefix = "ctc" if call.is_custom else "fc"
            item = {"type": kind, "id": _id(prefix), "call_id": call.id, "name": call.name, member: ""}
            yield from self._begin(kind, item, call.index)
        if call.arguments:
            self._text.append(call.arguments)
            yield self._event(f"response.{kind}_{member}.delta", delta=call.arguments)

    def _open_message(self) -> Iterator[Event]:
        yield from self._close()
        yield from self._begin("message", {"type": "message", "id": _id("msg"), "role": "assistant", "content": []})
        yield self._part_event("response.content_part.added", part=_text_part("", []))

    def _begin(self, kind: str, item: Item, number: int = 0) -> Iterator[Event]:
        self._open = (kind, number)
        self._text, self._logprobs = [], []
        self.items.append(item | {"status": "in_progress"})
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _close(self, status: str = "completed") -> Iterator[Event]:
        if self._open is None:
            return
        kind, text, item = self._open[0], "".join(self._text), self.items[-1]
        if kind in _CALLS:
            member = _CALLS[kind]
            item[member] = text
            named = {"name": item["name"]} if kind == "function_call" else {}
            yield self._event(f"response.{kind}_{member}.done", **named, **{member: text})
        elif kind == "reasoning":
            item["content"] = [_reasoning_part(text)]
            yield self._part_event("response.reasoning_text.done", text=text)
            yield self._part_event("response.content_part.done", part=_reasoning_part(text))
        else:
            item["content"] = [_text_part(text, self._logprobs)]
            yield self._part_event("response.output_text.done", text=text, logprobs=self._logprobs)
            yield self._part_event("response.content_part.done", part=_text_part(text, self._logprobs))
        item["status"] = status
        self._open = None
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}

    def _part_event(self, kind: str, **fields: object) -> Event:
        """Of the item's only part."""
        return self._event(kind, content_index=0, **fields)

    def _has_logprobs(self, delta: ChoiceDelta) -> bool:
        """Also if its tokens make no text yet; thinking and calls have none."""
        return self._with_logprobs and bool(delta.scored) and not delta.reasoning and not delta.tool_calls

    def _logprobs_of(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        if not self._with_logprobs:
            return []
        return [token.model_dump() for token in chat_logprobs(delta.scored, self._tokenizer).content]


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
