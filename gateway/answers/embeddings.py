"""What /v1/embeddings asks of the engine: an embedding request -> prompts; the prompts -> their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gateway.metrics import RequestObserver
from gateway.openai.embedding_schemas import EmbeddingRequest
from gateway.requests.terms import Terms
from gateway.requests.translate import encode
from gateway.requests.unserved_fields import refuse_unserved
from gateway.served_model import ServedModel
from pageloom.client import EngineClient
from pageloom.errors import ContextLengthExceeded, EngineError, InvalidRequest
from pageloom.outputs import ChoiceFinished
from pageloom.plan import ModelInfo
from pageloom.policies import Pooling
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams, check_token_ids

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
    """Raises InvalidRequest, ContextLengthExceeded or ModelNotFound. Callers run it in a thread."""
    model.require_name(body.model)
    _check_fields(body, info)
    inputs = _inputs(body.input)
    names = ["input"] if len(inputs) == 1 else [f"input[{index}]" for index in range(len(inputs))]
    return EmbeddingJob(
        prompts=tuple(_prompt(given, name, body, model, info) for given, name in zip(inputs, names, strict=True)),
        pooling=info.pooling,
        terms=terms,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


async def embed(
    client: EngineClient, answer_id: str, job: EmbeddingJob, observer: RequestObserver, *, max_at_once: int
) -> list[bytes]:
    """The vectors of all prompts, little-endian float32 [hidden]; at most `max_at_once` are at the engine at a time.

    Raises what the engine's calls raise, and then cancels the others.
    """
    vectors = [b""] * len(job.prompts)
    waiting = iter(range(len(job.prompts)))

    async def take_turns() -> None:
        for index in waiting:
            vectors[index] = await _embed_one(client, f"{answer_id}-{index}", job, index)
            observer.on_finish("stop")

    tasks = [asyncio.create_task(take_turns()) for _ in range(min(max_at_once, len(job.prompts)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return vectors


async def _embed_one(client: EngineClient, request_id: str, job: EmbeddingJob, index: int) -> bytes:
    request = GenerateRequest(
        request_id=request_id,
        prompt_token_ids=job.prompts[index],
        sampling=SamplingParams(),
        priority=job.priority,
        cache_salt=job.cache_salt,
        tenant=job.terms.tenant,
        deadline_s=job.terms.left_s(),
        pooling=job.pooling,
    )
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            if isinstance(event, ChoiceFinished):
                event.require_success()
                if not event.embedding:
                    raise EngineError("the engine brought no embedding")
                return event.embedding
    raise EngineError("the engine ended the stream too early")


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


def _inputs(given: str | Sequence[str] | Sequence[int] | Sequence[list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("input is empty", param="input")
    if isinstance(given[0], int):
        return [list(_ints(given))]
    return [item for item in given if not isinstance(item, int)]


def _ints(given: Sequence[object]) -> Iterator[int]:
    return (item for item in given if isinstance(item, int))


def _prompt(
    given: str | list[int], name: str, body: EmbeddingRequest, model: ServedModel, info: ModelInfo
) -> tuple[int, ...]:
    limit = body.truncate_prompt_tokens
    most = info.max_model_len if limit in (None, -1) else limit
    assert most is not None
    token_ids = _token_ids(given, name, body, model, info)
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
    num_last = 0 if isinstance(given, list) else _num_added_at_end(token_ids, body, model)
    return (*token_ids[: most - num_last], *token_ids[len(token_ids) - num_last :])[:most]


def _token_ids(
    given: str | list[int], name: str, body: EmbeddingRequest, model: ServedModel, info: ModelInfo
) -> list[int]:
    if isinstance(given, list):
        check_token_ids(name, given, info.vocab_size)
        return given
    # What is cut off anyway may be longer than a context.
    room = None if body.truncate_prompt_tokens is not None else info
    return encode(given, model, room, name, add_special_tokens=body.add_special_tokens is not False)


def _num_added_at_end(token_ids: list[int], body: EmbeddingRequest, model: ServedModel) -> int:
    """How many special tokens the tokenizer puts after a text: a model's embedding may be that of the last of them."""
    if body.add_special_tokens is False:
        return 0
    added = model.tokenizer.encode("", add_special_tokens=True)
    return next((count for count in range(len(added), 0, -1) if token_ids[-count:] == added[-count:]), 0)
