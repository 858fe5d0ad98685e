"""What requests look like in OpenAI's shapes, with vLLM's extra fields. Types only: what values mean is decided in
`requests/translate.py`, how large they may be in `requests/limits.py`, sampling parameters' ranges in
`SamplingParams`. Answers are in `answer_schemas.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from pageloom.chats.schemas import ChatOptions, Messages, TemplateOptions
from pageloom.grammars.schemas import FormOptions
from pageloom.request_model import RequestModel

MAX_TOP_LOGPROBS = 20
MAX_CACHE_SALT_CHARS = 128
# It becomes part of the answer's id.
REQUEST_ID_PATTERN = r"^[!-~]{1,128}$"

# fail_fast: a list of a million wrong items must not become a million errors.
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
NonEmptyString = Annotated[str, Field(min_length=1)]
NonEmptyStrings = Annotated[list[NonEmptyString], Field(fail_fast=True)]
# What several requests have.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
CacheSalt = Annotated[str, Field(max_length=MAX_CACHE_SALT_CHARS)]


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(FormOptions):
    """What chat and text completions have in common. null means the default everywhere."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Seed | None = None
    stop: NonEmptyString | NonEmptyStrings | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: NonEmptyStrings | None = None
    # An empty list would allow nothing.
    allowed_token_ids: Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    include_timeline: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    # Without effect on an answer, whatever they say.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None


class CompletionRequest(GenerationRequest):
    prompt: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class ChatCompletionRequest(GenerationRequest, ChatOptions):
    max_completion_tokens: int | None = None
    echo: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class TokenizeRequest(TemplateOptions):
    """Either `prompt` or `messages`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: TokenIds
