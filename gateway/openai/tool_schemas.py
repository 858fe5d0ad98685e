"""The shapes of tools: what a request offers, what it demands, and calls in answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.openai.optional_keys import IF_ANY
from gateway.openai.request_model import RequestModel

# It stands in prompts as it is, so it may not hold what means something there.
TOOL_NAME_PATTERN = r"^[a-zA-Z0-9_.:-]{1,128}$"


class FunctionDefinition(RequestModel):
    """`parameters` is a JSON Schema of an object; without it the function takes no arguments."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(RequestModel):
    name: str


class NamedToolChoice(RequestModel):
    type: Literal["function"] = "function"
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class AnsweredFunction(BaseModel):
    name: str
    arguments: str


class AnsweredToolCall(BaseModel):
    """`arguments` is JSON text as the model wrote it: cut short if the answer was."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AssistantMessage(BaseModel):
    """`content` is null if the answer has none beside its calls or its thinking. The thinking comes under two names,
    since clients differ in which they read."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: Annotated[str | None, IF_ANY] = None
    reasoning: Annotated[str | None, IF_ANY] = None
    tool_calls: Annotated[list[AnsweredToolCall] | None, IF_ANY] = None
