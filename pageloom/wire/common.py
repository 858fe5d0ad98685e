"""Values that both protocols speak: sampling parameters, log-probabilities, model, cache."""

from __future__ import annotations

from google.protobuf.message import Message

from pageloom.errors import InvalidRequest
from pageloom.outputs import PromptLogprobs, TokenLogprobs
from pageloom.plan import CacheInfo, ModelInfo
from pageloom.policies import Pooling
from pageloom.rpc.v1 import common_pb2
from pageloom.sampling_params import SamplingParams

_POOLING_TO_PROTO = {Pooling.last: common_pb2.POOLING_LAST, Pooling.mean: common_pb2.POOLING_MEAN}
_POOLING_FROM_PROTO = {number: pooling for pooling, number in _POOLING_TO_PROTO.items()}


def has_only(message: Message, names: frozenset[str]) -> bool:
    """Whether every field that is set is one of these: to ask each of the others costs several times as much."""
    return names.issuperset([field.name for field, _ in message.ListFields()])


def sampling_to_proto(sampling: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        seed=sampling.seed,
        grammar=sampling.grammar,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[common_pb2.TokenSequence(token_ids=token_ids) for token_ids in sampling.bad_words],
        prompt_logprobs=sampling.prompt_logprobs,
    )


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidRequest if a value is out of range."""
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        logit_bias=dict(message.logit_bias),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        seed=message.seed if message.HasField("seed") else None,
        grammar=message.grammar,
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(sequence.token_ids) for sequence in message.bad_words),
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    return common_pb2.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def logprobs_from_proto(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, tuple(message.top_token_ids), tuple(message.top_logprobs))


def prompt_logprobs_to_proto(scores: PromptLogprobs) -> common_pb2.PromptLogprobs:
    return common_pb2.PromptLogprobs(
        first_index=scores.first_index,
        logprobs=scores.logprobs,
        ranks=scores.ranks,
        top_token_ids=scores.top_token_ids,
        top_logprobs=scores.top_logprobs,
    )


def prompt_logprobs_from_proto(message: common_pb2.PromptLogprobs) -> PromptLogprobs:
    """Raises ValueError if there are none, or the columns do not fit each other."""
    num_tokens, num_tops = len(message.logprobs), len(message.top_token_ids)
    fits = len(message.ranks) == num_tokens and len(message.top_logprobs) == num_tops
    if not num_tokens or num_tops % num_tokens or not fits:
        raise ValueError("the columns of the prompt's log-probabilities do not fit each other")
    return PromptLogprobs(
        first_index=message.first_index,
        logprobs=tuple(message.logprobs),
        ranks=tuple(message.ranks),
        top_token_ids=tuple(message.top_token_ids),
        top_logprobs=tuple(message.top_logprobs),
    )


def pooling_to_proto(pooling: Pooling | None) -> common_pb2.Pooling:
    return common_pb2.POOLING_UNSPECIFIED if pooling is None else _POOLING_TO_PROTO[pooling]


def pooling_from_proto(number: common_pb2.Pooling) -> Pooling | None:
    """Raises InvalidRequest if there is no such way."""
    if number == common_pb2.POOLING_UNSPECIFIED:
        return None
    if number not in _POOLING_FROM_PROTO:
        raise InvalidRequest(f"pooling must be POOLING_LAST or POOLING_MEAN, not {number}", param="pooling")
    return _POOLING_FROM_PROTO[number]


def model_to_proto(model: ModelInfo) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        name=model.name,
        digest=model.digest,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        dtype=model.dtype,
        weights_bytes=model.weights_bytes,
        hidden_size=model.hidden_size,
        pooling=pooling_to_proto(model.pooling),
    )


def model_from_proto(message: common_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        digest=message.digest,
        architecture=message.architecture,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        dtype=message.dtype,
        weights_bytes=message.weights_bytes,
        hidden_size=message.hidden_size,
        pooling=pooling_from_proto(message.pooling) or Pooling.last,
    )


def cache_to_proto(cache: CacheInfo) -> common_pb2.CacheInfo:
    return common_pb2.CacheInfo(block_size=cache.block_size, num_blocks=cache.num_blocks, kv_bytes=cache.kv_bytes)


def cache_from_proto(message: common_pb2.CacheInfo) -> CacheInfo:
    return CacheInfo(block_size=message.block_size, num_blocks=message.num_blocks, kv_bytes=message.kv_bytes)
