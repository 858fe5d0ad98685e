"""Request fields that are known and not served: refused by name, so that nothing that was asked for is dropped in
silence. Fields that nobody knows are ignored, because clients are newer than servers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import structlog

from pageloom.errors import InvalidRequest
from pageloom.request_model import RequestModel

_TEXT_ONLY = "the server reads and writes text only"
_NO_TENSORS = "the server takes no tensors from requests"
_NO_CODE = "the server runs no code that requests choose"
_NO_BEAMS = "there is no beam search; n and best_of sample"
_NO_TRANSFER = "KV blocks do not leave their worker"

# Fields of older servers and of other ones -> ours.
RENAMED_FIELDS: Mapping[str, str] = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "structural_tag": "structured_outputs.structural_tag",
    "grammar": "structured_outputs.grammar",
    "ebnf": "structured_outputs.grammar",
    "regex": "structured_outputs.regex",
    "json_schema": "response_format",
}

# Name -> why not. docs/compatibility.md lists them.
UNSERVED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        # OpenAI's.
        "audio": _TEXT_ONLY,
        "function_call": "it was replaced by tool_choice",
        "functions": "they were replaced by tools",
        "web_search_options": "the server fetches nothing",
        # vLLM's.
        "chat_template": "templates come from the model, or from the operator by --chat-template",
        "ec_transfer_params": _NO_TRANSFER,
        "kv_transfer_params": _NO_TRANSFER,
        "length_penalty": _NO_BEAMS,
        "logits_processors": _NO_CODE,
        "logprob_token_ids": "logprobs and top_logprobs give the likeliest tokens",
        "media_io_kwargs": _TEXT_ONLY,
        "mm_payload": _TEXT_ONLY,
        "mm_processor_kwargs": _TEXT_ONLY,
        "prompt_embeds": _NO_TENSORS,
        "prompt_logprob_token_ids": "prompt_logprobs gives the likeliest tokens",
        "repetition_detection": "repetition_penalty, stop and max_tokens bound an answer",
        "return_prompt_text": "echo repeats the prompt of a text completion",
        "return_token_offsets": "logprobs of text completions have text_offset",
        "routed_experts_prompt_start": "which experts a token took is not told",
        "stream_interval": "tokens are sent as they come",
        "thinking_token_budget": "max_tokens bounds an answer with its reasoning",
        "use_beam_search": _NO_BEAMS,
        "vllm_xargs": _NO_CODE,
        "watermarking": "answers are not marked",
    }
)
# The same of the other APIs, beside those above.
UNSERVED_IN_RESPONSES: Mapping[str, str] = MappingProxyType(
    {
        "conversation": "previous_response_id goes on from a stored response",
        "max_tokens": "use max_output_tokens",
        "messages": "use input",
        "n": "a response is one answer",
        "prompt": "the server has no prompt templates",
        "response_format": "use text.format",
        "structured_outputs": "use text.format",
        **dict.fromkeys(RENAMED_FIELDS, "use text.format"),
    }
)
UNSERVED_IN_MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        "container": _NO_CODE,
        "mcp_servers": "the server calls no others; the client can",
        "response_format": "use output_config.format",
        "structured_outputs": "use output_config.format",
    }
)
# Some of an API's that is served are looked at where they mean something.
_ELSEWHERE = frozenset({"modalities", "embed_dtype", "endianness"})
_KNOWN = frozenset({*UNSERVED_FIELDS, *UNSERVED_IN_RESPONSES, *UNSERVED_IN_MESSAGES, *RENAMED_FIELDS, *_ELSEWHERE})
_NO_OTHERS: Mapping[str, str] = MappingProxyType({})
# Besides these a field may ask for nothing by what would be the case anyway.
_NOTHING: tuple[object, ...] = (None, False, "", [], {})
_AS_IT_IS: Mapping[str, object] = MappingProxyType({"length_penalty": 1.0, "n": 1, "stream_interval": 1})
_log = structlog.get_logger(__name__)


def refuse_unserved(body: RequestModel, others: Mapping[str, str] = _NO_OTHERS) -> None:
    """Raises InvalidRequest, naming the field and the reason. `others` are unserved fields of the body's own API."""
    extra = body.model_extra or {}
    for name, value in extra.items():
        if value in _NOTHING or value == _AS_IT_IS.get(name):
            continue
        if name in others:
            raise unserved(name, why=others[name])
        if name in RENAMED_FIELDS:
            raise unserved(name, why=f"use {RENAMED_FIELDS[name]}")
        if name in UNSERVED_FIELDS:
            raise unserved(name, why=UNSERVED_FIELDS[name])
        _log.debug("unknown request field ignored", field=name)
    if extra.get("modalities") not in (None, [], ["text"]):
        raise unserved("modalities", "other than ['text']", why=_TEXT_ONLY)


def num_unknown(body: RequestModel) -> int:
    """How many fields of a request are ignored since nobody knows them."""
    extra = body.model_extra
    return len(extra.keys() - _KNOWN) if extra else 0


class UnservedField(InvalidRequest):
    """Names the field as the caller's own API does."""


def unserved(field: str, what: str = "", *, why: str = "") -> UnservedField:
    """The error for a field, or for `what` of its values."""
    reason = f": {why}" if why else ""
    return UnservedField(f"{field}{' ' if what else ''}{what} is not served{reason}", param=field)
