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
    Strings,
    TokenIds,
)
from pageloom.chats.schemas import TemplateVariables
from pageloom.request_model import RequestModel

LOGPROBS_INCLUDED = "message.output_text.logprobs"
# All that OpenAI knows. The others are parts of items that no answer has here, but the encrypted reasoning: clients ask
# for it to send it back, and here the reasoning itself is what they get and send.
INCLUDABLE = frozenset(
    {
        LOGPROBS_INCLUDED,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)


class InputPart(RequestModel):
    """A part of a message, of a tool's output, or of earlier reasoning. Only text can be served."""

    type: str
    text: str | None = None
    refusal: str | None = None


InputParts = Annotated[list[InputPart], Field(fail_fast=True)]


class InputItem(RequestModel):
    """A message, a call of a function or a custom tool, its output, or earlier reasoning, as `type` says; each uses
    some of the fields."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | InputParts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | InputParts | None = None
    summary: InputParts | None = None
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
    input: str | Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: Strings | None = None
    text: TextOptions | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    # Of tools that OpenAI runs; there are none here, so it always holds.
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
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
