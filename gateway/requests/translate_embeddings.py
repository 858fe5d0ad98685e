"""An embedding request -> the prompts whose vectors it asks for. Rendering and tokenizing take a while, so callers run
it in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.openai.embedding_schemas import EmbeddingRequest
from gateway.requests.prompt_tokens import encode
from gateway.requests.terms import Terms
from gateway.requests.unserved_fields import refuse_unserved
from gateway.served_model import ServedModel
from pageloom.chats.offered_tools import offered_tools, shown_tools
from pageloom.chats.rendering import render_messages
from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.plan import ModelInfo
from pageloom.policies import Pooling
from pageloom.sampling_params import check_token_ids

# Other elements than float32 would be another answer.
_ONLY_VALUES = {"embed_dtype": ("float32",), "endianness": ("native", "little")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """The prompts whose embeddings are asked for, and which hidden states these are."""

    prompts: tuple[tuple[int, ...], ...]
    pooling: Pooling
    terms: Terms
    priority: int
    cache_salt: str

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def translate_embeddings(body: EmbeddingRequest, terms: Terms, model: ServedModel, info: ModelInfo) -> EmbeddingJob:
    """Raises InvalidRequest, ContextLengthExceeded or ModelNotFound."""
    model.require_name(body.model)
    _check_fields(body, info)
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("give either input or messages", param="input")
    prompts = _of_input(body, model, info) if body.messages is None else [_of_messages(body, model, info)]
    return EmbeddingJob(
        prompts=tuple(prompts),
        pooling=info.pooling,
        terms=terms,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def _check_fields(body: EmbeddingRequest, info: ModelInfo) -> None:
    refuse_unserved(body)
    for name, accepted in _ONLY_VALUES.items():
        value = (body.model_extra or {}).get(name)
        if value is not None and value not in accepted:
            raise InvalidRequest(f"{name} must be {' or '.join(accepted)}, not {value!r}", param=name)
    if body.dimensions is not None and body.dimensions > info.hidden_size:
        raise InvalidRequest(
            f"dimensions is {body.dimensions}, but the model's embeddings have {info.hidden_size}", param="dimensions"
        )
    if body.truncate_prompt_tokens == 0 or (body.truncate_prompt_tokens or 0) > info.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, which is the whole context, or between 1 and {info.max_model_len}, "
            f"not {body.truncate_prompt_tokens}",
            param="truncate_prompt_tokens",
        )


def _of_messages(body: EmbeddingRequest, model: ServedModel, info: ModelInfo) -> tuple[int, ...]:
    """The conversation as it is: unless asked for, no answer begins."""
    rendered = body.model_copy(update={"add_generation_prompt": bool(body.add_generation_prompt)})
    text = render_messages(body.messages or (), rendered, model, shown_tools(offered_tools(body.tools or ())))
    framed = bool(body.add_special_tokens)
    return _encoded(text, "messages", body, model, info, framed=framed)


def _of_input(body: EmbeddingRequest, model: ServedModel, info: ModelInfo) -> Iterator[tuple[int, ...]]:
    inputs = _inputs(body.input)
    names = ["input"] if len(inputs) == 1 else [f"input[{index}]" for index in range(len(inputs))]
    for given, name in zip(inputs, names, strict=True):
        if isinstance(given, str):
            yield _encoded(given, name, body, model, info, framed=body.add_special_tokens is not False)
        else:
            check_token_ids(name, given, info.vocab_size)
            yield _cut(given, name, body, info, num_last=0)


def _inputs(given: str | Sequence[str] | Sequence[int] | Sequence[list[int]] | None) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("input is empty", param="input")
    if isinstance(given[0], int):
        return [list(_ints(given))]
    return [item for item in given if not isinstance(item, int)]


def _ints(given: Sequence[object]) -> Iterator[int]:
    return (item for item in given if isinstance(item, int))


def _encoded(
    text: str, name: str, body: EmbeddingRequest, model: ServedModel, info: ModelInfo, *, framed: bool
) -> tuple[int, ...]:
    will_be_cut = body.truncate_prompt_tokens is not None
    token_ids = encode(text, model, info, name, add_special_tokens=framed, will_be_cut=will_be_cut)
    return _cut(token_ids, name, body, info, num_last=_num_added_at_end(token_ids, model) if framed else 0)


def _cut(token_ids: list[int], name: str, body: EmbeddingRequest, info: ModelInfo, *, num_last: int) -> tuple[int, ...]:
    """To what is asked for, of which the `num_last` last are kept."""
    limit = body.truncate_prompt_tokens
    most = info.max_model_len if limit in (None, -1) else limit
    assert most is not None
    if not token_ids:
        raise InvalidRequest(f"{name} is empty: it makes no tokens", param=name)
    if len(token_ids) <= most:
        return tuple(token_ids)
    if limit is None:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {most} tokens. However, {name} has {len(token_ids)}.", param=name
        )
    if body.truncation_side == "left":
        return tuple(token_ids[-most:])
    return (*token_ids[: most - num_last], *token_ids[len(token_ids) - num_last :])[:most]


def _num_added_at_end(token_ids: list[int], model: ServedModel) -> int:
    """How many special tokens the tokenizer puts after a text: a model's embedding may be that of the last of them."""
    added = model.tokenizer.encode("", add_special_tokens=True)
    return next((count for count in range(len(added), 0, -1) if token_ids[-count:] == added[-count:]), 0)
