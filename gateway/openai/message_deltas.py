"""Thinking and tool calls -> the `delta` of a chat chunk, and the message of a whole answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.answers.whole_answer import ChoiceAnswer, ToolCallAnswer
from gateway.openai.tool_schemas import (
    AnsweredCustomCall,
    AnsweredFunction,
    AnsweredInput,
    AnsweredToolCall,
    AssistantMessage,
)
from pageloom.parsing.tool_calls import ToolCallDelta


def reasoning_delta(text: str) -> bytes:
    return orjson.dumps({"reasoning_content": text, "reasoning": text})


def tool_calls_delta(deltas: Sequence[ToolCallDelta]) -> bytes:
    return orjson.dumps({"tool_calls": [_call(delta) for delta in deltas]})


def assistant_message(answer: ChoiceAnswer, echo: str = "") -> AssistantMessage:
    """`echo` is repeated before the content."""
    calls = [_answered(call) for call in answer.tool_calls]
    content = echo + answer.text
    return AssistantMessage(
        content=content if content or not (calls or answer.reasoning) else None,
        reasoning_content=answer.reasoning or None,
        reasoning=answer.reasoning or None,
        tool_calls=calls or None,
    )


def _answered(call: ToolCallAnswer) -> AnsweredToolCall | AnsweredCustomCall:
    if call.is_custom:
        return AnsweredCustomCall(id=call.id, custom=AnsweredInput(name=call.name, input=call.arguments))
    return AnsweredToolCall(id=call.id, function=AnsweredFunction(name=call.name, arguments=call.arguments))


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    kind, member = ("custom", "input") if delta.is_custom else ("function", "arguments")
    if delta.name is None:
        return {"index": delta.index, kind: {member: delta.arguments}}
    return {"index": delta.index, "id": delta.id, "type": kind, kind: {"name": delta.name, member: delta.arguments}}
