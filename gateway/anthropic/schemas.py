"""What an Anthropic Messages request looks like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.openai.schemas import NonEmptyStrings
from pageloom.request_model import RequestModel


class Block(RequestModel):
    """A piece of content: text, tool_use, tool_result or thinking, as `type` says; each uses some of the fields."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[Block], Field(fail_fast=True)] | None = None


class Message(RequestModel):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(fail_fast=True)]


class Tool(RequestModel):
    """One of the caller's own. Anthropic's, which have other types, run on Anthropic's servers."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestModel):
    format: OutputFormat | None = None
    effort: str | None = None


class PromptFields(RequestModel):
    """What makes the prompt."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[Block], Field(fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None


class CountTokensRequest(PromptFields):
    pass


class MessagesRequest(PromptFields):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: NonEmptyStrings | None = None
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    output_config: OutputConfig | None = None
    metadata: dict[str, Any] | None = None
