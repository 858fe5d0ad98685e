"""The shapes of messages and tools, OpenAI's, and what a chat may say of its prompt and its answer. Types only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pageloom.grammars.schemas import FormOptions
from pageloom.request_model import RequestModel

# It stands in prompts as it is, so it may not hold what means something there.
TOOL_NAME_PATTERN = r"^[a-zA-Z0-9_.:-]{1,128}$"
TemplateVariables = dict[str, str | int | float | bool | None]


class ContentPart(RequestModel):
    type: str
    text: str | None = None


class FunctionCall(RequestModel):
    name: str
    arguments: str


class CustomCall(RequestModel):
    name: str
    input: str


class ToolCall(RequestModel):
    """Of a `function` or a `custom` tool, as `type` says."""

    id: str | None = None
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


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


class TemplateOptions(RequestModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None


class ChatOptions(TemplateOptions, FormOptions):
    """A chat, and what its answer may have in it."""

    messages: Messages
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
