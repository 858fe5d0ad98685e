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


class ToolCall(RequestModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1)]


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


class TemplateOptions(RequestModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None


class ChatOptions(TemplateOptions, FormOptions):
    """A chat, and what its answer may have in it."""

    messages: Messages
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
