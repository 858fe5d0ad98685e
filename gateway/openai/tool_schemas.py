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


class CustomGrammar(RequestModel):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(RequestModel):
    type: Literal["text", "grammar"]
    grammar: CustomGrammar | None = None


class CustomDefinition(RequestModel):
    """A tool whose input is a text instead of a JSON object."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    format: CustomFormat | None = None


class Tool(RequestModel):
    """A `function` or a `custom` tool, as `type` says."""

    type: Literal["function", "custom"]
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class ToolName(RequestModel):
    name: str


class NamedFunctionChoice(RequestModel):
    type: Literal["function"] = "function"
    function: ToolName


class NamedCustomChoice(RequestModel):
    type: Literal["custom"]
    custom: ToolName


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunctionChoice | NamedCustomChoice], Field(min_length=1, fail_fast=True)]


class AllowedToolsChoice(RequestModel):
    """As `auto` or `required`, of some of the tools; the model sees them all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


NamedChoice = NamedFunctionChoice | NamedCustomChoice
ToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedToolsChoice


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
