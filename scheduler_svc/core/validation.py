"""May a request be accepted? Every check happens before anything of it is stored."""

from __future__ import annotations

from dataclasses import replace

from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.plan import MAX_NUM_DRAFT_TOKENS, ModelInfo, WorkerHello
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams, check_token_ids

# Of a Hello. The scheduler keeps something for each block and slot, so a worker must not name any number.
MAX_NAME_CHARS = 256
MAX_BLOCK_SIZE = 1 << 16
MAX_NUM_BLOCKS = 1 << 22
MAX_NUM_SLOTS = 1 << 14
MAX_CONTEXT_TOKENS = 1 << 30
MAX_VOCAB_SIZE = 1 << 24
MAX_HIDDEN_SIZE = 1 << 20
MAX_EOS_TOKEN_IDS = 128
MAX_EPOCH = 1 << 62


def validated(
    request: GenerateRequest, *, model: ModelInfo, num_kv_tokens: int, num_pooled_tokens: int, max_num_choices: int
) -> GenerateRequest:
    """The request with `sampling.max_tokens` set; `num_kv_tokens` is what the largest KV memory holds, and
    `num_pooled_tokens` the longest prompt that can be pooled.

    Raises InvalidRequest, naming the field, or ContextLengthExceeded.
    """
    assert request.sampling.seed is not None, "the caller draws the seed"
    if not request.prompt_token_ids:
        raise InvalidRequest("prompt_token_ids is empty; at least one token is needed", param="prompt_token_ids")
    if not 1 <= request.n <= max_num_choices:
        raise InvalidRequest(f"n must be between 1 and {max_num_choices}, not {request.n}", param="n")
    check_token_ids("prompt_token_ids", request.prompt_token_ids, model.vocab_size)
    if request.pooling is not None:
        return _validated_pooling(request, model, num_pooled_tokens)
    request.sampling.check_vocabulary(model.vocab_size)
    if request.sampling.grammar and not model.eos_token_ids:
        raise InvalidRequest("grammar needs a model with an end-of-sequence token; this one has none", param="grammar")
    sampling = _with_max_tokens(request, model.max_model_len, num_kv_tokens)
    _check_resume(request, sampling, model)
    return replace(request, sampling=sampling)


def stop_token_ids(sampling: SamplingParams, model: ModelInfo) -> frozenset[int]:
    """The tokens that end a choice."""
    eos_token_ids = model.eos_token_ids if sampling.ends_at_eos else ()
    return frozenset(eos_token_ids) | frozenset(sampling.stop_token_ids)


def num_scored_at_first(request: GenerateRequest, choice_index: int) -> int:
    """Leading prompt tokens whose log-probabilities this choice is not to tell: of the first there are none. The
    choices share their prompt, so the first of them tells them all, before its first token: who has that has them."""
    is_wanted = request.sampling.prompt_logprobs is not None and choice_index == 0 and not dict(request.resume).get(0)
    return 1 if is_wanted else len(request.prompt_token_ids)


def check_hello(hello: WorkerHello, served: ModelInfo | None) -> None:
    """Raises InvalidRequest if a worker's Hello makes no sense, or its model is not the one `served`."""
    model = hello.model
    for name, text in (("worker_id", hello.worker_id), ("model.digest", model.digest), ("model.dtype", model.dtype)):
        if not 1 <= len(text) <= MAX_NAME_CHARS:
            raise InvalidRequest(f"{name} must have 1 to {MAX_NAME_CHARS} characters, not {len(text)}", param=name)
    counts = {
        "cache.block_size": (hello.cache.block_size, MAX_BLOCK_SIZE),
        "cache.num_blocks": (hello.cache.num_blocks, MAX_NUM_BLOCKS),
        "max_num_seqs": (hello.max_num_seqs, MAX_NUM_SLOTS),
        "max_num_batched_tokens": (hello.max_num_batched_tokens, MAX_CONTEXT_TOKENS),
        "model.vocab_size": (model.vocab_size, MAX_VOCAB_SIZE),
        "model.max_model_len": (model.max_model_len, MAX_CONTEXT_TOKENS),
        # Workers of earlier versions, which pool nothing, say none.
        "model.hidden_size": (max(1, model.hidden_size), MAX_HIDDEN_SIZE),
        # It grows by one for each attachment, from a clock in milliseconds.
        "highest_epoch": (hello.highest_epoch + 1, MAX_EPOCH),
        # 0 if it guesses none.
        "max_num_draft_tokens": (hello.max_num_draft_tokens or 1, MAX_NUM_DRAFT_TOKENS),
    }
    for name, (count, most) in counts.items():
        if not 1 <= count <= most:
            raise InvalidRequest(
                f"worker {hello.worker_id}: {name} must be between 1 and {most}, not {count}", param=name
            )
    if len(model.eos_token_ids) > MAX_EOS_TOKEN_IDS or max(model.eos_token_ids, default=0) >= model.vocab_size:
        raise InvalidRequest(
            f"worker {hello.worker_id}: model.eos_token_ids must be at most {MAX_EOS_TOKEN_IDS} ids below "
            f"model.vocab_size, which is {model.vocab_size}",
            param="model.eos_token_ids",
        )
    if served is None:
        return
    for field in ("digest", "vocab_size", "eos_token_ids", "dtype", "hidden_size", "pooling"):
        own, other = getattr(model, field), getattr(served, field)
        if own != other:
            raise InvalidRequest(
                f"worker {hello.worker_id} runs another model: its {field} is {own}, but {other} is being served",
                param=f"model.{field}",
            )


def _validated_pooling(request: GenerateRequest, model: ModelInfo, num_pooled_tokens: int) -> GenerateRequest:
    if not model.hidden_size:
        raise InvalidRequest("pooling is not supported by the worker that runs the model", param="pooling")
    if request.n != 1:
        raise InvalidRequest(f"n must be 1 with pooling, not {request.n}", param="n")
    if request.resume:
        raise InvalidRequest("resume means nothing with pooling: there are no tokens to have", param="resume")
    num_tokens = len(request.prompt_token_ids)
    if num_tokens > num_pooled_tokens:
        reason = (
            f"the model's maximum context length is {model.max_model_len} tokens"
            if num_tokens > model.max_model_len
            else f"the KV memory takes at most {num_pooled_tokens} tokens"
        )
        raise ContextLengthExceeded(f"{reason}, but the prompt has {num_tokens}", param="prompt_token_ids")
    # Nothing is drawn; whoever binds it need not know what was asked for.
    return replace(request, sampling=SamplingParams(seed=request.sampling.seed, max_tokens=1))


def _with_max_tokens(request: GenerateRequest, max_model_len: int, num_kv_tokens: int) -> SamplingParams:
    num_prompt_tokens = len(request.prompt_token_ids)
    max_tokens = request.sampling.max_tokens
    # Nothing reads the KV of the last token, so one more token fits than the memory holds.
    max_num_tokens = min(max_model_len, num_kv_tokens + 1)
    num_tokens = num_prompt_tokens + (1 if max_tokens is None else max_tokens)
    if num_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"the model's maximum context length is {max_model_len} tokens, but {num_tokens} were requested: "
            f"{num_prompt_tokens} in the prompt and {num_tokens - num_prompt_tokens} for the output",
            param="prompt_token_ids" if num_prompt_tokens >= max_model_len else "max_tokens",
        )
    if num_tokens > max_num_tokens:
        raise ContextLengthExceeded(
            f"{num_tokens} tokens were requested ({num_prompt_tokens} in the prompt and "
            f"{num_tokens - num_prompt_tokens} for the output), but the KV memory takes at most {max_num_tokens}",
            param="prompt_token_ids" if num_prompt_tokens >= max_num_tokens else "max_tokens",
        )
    if max_tokens is not None:
        return request.sampling
    return replace(request.sampling, max_tokens=max_num_tokens - num_prompt_tokens)


def _check_resume(request: GenerateRequest, sampling: SamplingParams, model: ModelInfo) -> None:
    stops = stop_token_ids(sampling, model)
    seen: set[int] = set()
    for choice_index, token_ids in request.resume:
        if not 0 <= choice_index < request.n or choice_index in seen:
            problem = "twice" if choice_index in seen else f"but n is {request.n}"
            raise InvalidRequest(f"resume names choice {choice_index} {problem}", param="resume")
        seen.add(choice_index)
        check_token_ids("resume", token_ids, model.vocab_size)
        assert sampling.max_tokens is not None
        ended = len(token_ids) >= sampling.max_tokens or not stops.isdisjoint(
            token_ids[sampling.num_tokens_before_stop :]
        )
        if ended:
            raise InvalidRequest(
                f"resume has all tokens of choice {choice_index} already: there is nothing to generate", param="resume"
            )
