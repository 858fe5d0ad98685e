"""What a Responses request looks like. What its answer looks like is in `response_object.py` and `output_items.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.openai.metadata import Metadata
from gateway.openai.schemas import (
    MAX_TOP_LOGPROBS,
    CacheSalt,
    NonEmptyString,
    NonEmptyStrings,
    Priority,
    Seed,
    TokenIds,
)
from pageloom.chats.schemas import TemplateVariables
from pageloom.request_model import RequestModel

LOGPROBS_INCLUDED = "message.output_text.logprobs"


class InputPart(RequestModel):
    """A part of a message, of a tool's output, or of earlier reasoning. Only text can be served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(RequestModel):
    """A message, a function call, its output, or earlier reasoning, as `type` says; each uses some of the fields."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    status: str | None = None


class TextFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(RequestModel):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(RequestModel):
    effort: str | None = None
    summary: str | None = None


class ResponseRequest(RequestModel):
    """null means the default everywhere."""

    model: str
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    metadata: Metadata | None = None
    user: str | None = None
    # vLLM's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None
    stop: NonEmptyString | NonEmptyStrings | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    chat_template_kwargs: TemplateVariables | None = None
