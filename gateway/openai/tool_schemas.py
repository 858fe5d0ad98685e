"""The shapes of calls in answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from gateway.openai.optional_keys import IF_ANY


class AnsweredFunction(BaseModel):
    name: str
    arguments: str


class AnsweredToolCall(BaseModel):
    """`arguments` is JSON text as the model wrote it: cut short if the answer was."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AnsweredInput(BaseModel):
    name: str
    input: str


class AnsweredCustomCall(BaseModel):
    id: str
    type: Literal["custom"] = "custom"
    custom: AnsweredInput


class AssistantMessage(BaseModel):
    """`content` is null if the answer has none beside its calls or its thinking. The thinking comes under two names,
    since clients differ in which they read."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: Annotated[str | None, IF_ANY] = None
    reasoning: Annotated[str | None, IF_ANY] = None
    tool_calls: Annotated[list[AnsweredToolCall | AnsweredCustomCall] | None, IF_ANY] = None
