"""OpenAI request -> prompt ids and SamplingParams. Every refusal is decided here, before the engine
or the client sees anything. Rendering and tokenizing a long prompt takes a while, so callers run it in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.openai.prompt_logprobs import with_scored_prompts
from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest
from gateway.requests.answer_parts import with_parts
from gateway.requests.job import Job, Prompt
from gateway.requests.prompt_tokens import TokenLimit, encode, kept_tokens, prompt_within
from gateway.requests.terms import Terms
from gateway.requests.unserved_fields import refuse_unserved, unserved
from gateway.served_model import ServedModel
from pageloom.bad_words import bad_word_ids
from pageloom.chats.offered_tools import shown_tools
from pageloom.chats.rendering import render_messages
from pageloom.chats.tool_use import read_tool_use
from pageloom.errors import InvalidRequest
from pageloom.grammars.structured_outputs import constrained_field, grammar_of
from pageloom.plan import ModelInfo
from pageloom.sampling_params import NO_BIAS, SamplingParams

MAX_TOKEN_ID_DIGITS = 10
# OpenAI's default for text completions; a chat may use the rest of the context.
COMPLETION_MAX_TOKENS = 16


def translate_chat(body: ChatCompletionRequest, terms: Terms, model: ServedModel, info: ModelInfo) -> Job:
    """Raises InvalidRequest, ContextLengthExceeded or ModelNotFound."""
    _check_common(body, model)
    use = read_tool_use(body, model)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unserved("best_of", "for chats unless it equals n")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.max_completion_tokens is not None:
        limit = TokenLimit(asked=body.max_completion_tokens, field="max_completion_tokens")
    else:
        limit = TokenLimit(asked=body.max_tokens, default=model.defaults.max_tokens)
    sampling = _sampling(body, model, logprobs=(body.top_logprobs or 0) if body.logprobs else None)
    text = render_messages(body.messages, body, model, shown_tools(use.offered))
    framed, cut = bool(body.add_special_tokens), body.truncate_prompt_tokens is not None
    token_ids = encode(text, model, info, "messages", add_special_tokens=framed, will_be_cut=cut)
    kept = kept_tokens(body, token_ids, limit.most_in_prompt(info.max_model_len))
    prompt = prompt_within(kept, sampling, limit, info, "messages")
    job = _job(body, terms, info, [replace(prompt, echo=_last_answer(body)) if body.echo else prompt])
    job = with_parts(job, use, body, model, text, info.eos_token_ids)
    return with_scored_prompts(replace(job, num_prompt_logprobs=body.prompt_logprobs), model.tokenizer)


def translate_completion(body: CompletionRequest, terms: Terms, model: ServedModel, info: ModelInfo) -> Job:
    """Raises InvalidRequest, ContextLengthExceeded or ModelNotFound."""
    _check_common(body, model)
    if body.suffix:
        raise unserved("suffix", why="text is not filled in between two others")
    _check_best_of(body)
    generate = body.max_tokens != 0
    limit = TokenLimit(asked=body.max_tokens if generate else None, default=COMPLETION_MAX_TOKENS)
    logprobs = body.logprobs
    if logprobs is None and (body.best_of or 1) > (body.n or 1):
        # The likeliest choices are told by them.
        logprobs = 0
    sampling = _sampling(body, model, logprobs=logprobs)
    prompts = []
    for given in _split_prompts(body.prompt):
        token_ids = _prompt_ids(given, body, model, info)
        kept = kept_tokens(body, token_ids, limit.most_in_prompt(info.max_model_len))
        prompt = prompt_within(kept, sampling, limit, info, "prompt")
        repeated = given if len(kept) == len(token_ids) else kept
        prompts.append(replace(prompt, echo=_echo(repeated, model)) if body.echo else prompt)
    job = replace(_job(body, terms, info, prompts), generate=generate, with_logprobs=body.logprobs is not None)
    job = replace(job, num_prompt_logprobs=body.prompt_logprobs, num_echo_logprobs=body.logprobs if body.echo else None)
    return with_scored_prompts(job, model.tokenizer)


def _check_common(body: GenerationRequest, model: ServedModel) -> None:
    model.require_name(body.model)
    refuse_unserved(body)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed; use echo with logprobs", param="prompt_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")


def _check_best_of(body: CompletionRequest) -> None:
    n = body.n or 1
    if body.best_of is None or body.best_of == n:
        return
    if body.best_of < n:
        raise InvalidRequest(f"best_of is {body.best_of}; it must be at least n, which is {n}", param="best_of")
    if body.stream:
        raise InvalidRequest(
            "best_of above n cannot be streamed: which choices are best shows at the end", param="best_of"
        )


def _sampling(body: GenerationRequest, model: ServedModel, *, logprobs: int | None) -> SamplingParams:
    """Raises InvalidRequest, naming the field, if a value is out of range."""
    defaults = model.defaults
    given = {
        name: value
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "ignore_eos"),
        )
        if (value := getattr(body, name)) is not None
    }
    return replace(
        defaults,
        **given,
        max_tokens=None,
        min_tokens=body.min_tokens or 0,
        logit_bias=_logit_bias(body.logit_bias),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=bad_word_ids(body.bad_words or (), model.tokenizer),
        logprobs=logprobs,
        # OpenAI's seeds are signed; only their bits matter.
        seed=None if body.seed is None else body.seed % 2**64,
        grammar=grammar_of(body, model.tokenizer, model.form_limits),
    )


def _logit_bias(entries: Mapping[str, float] | None) -> Mapping[int, float]:
    if not entries:
        return NO_BIAS
    bias: dict[int, float] = {}
    for key, value in entries.items():
        if not key.isascii() or not key.isdigit() or len(key) > MAX_TOKEN_ID_DIGITS:
            raise InvalidRequest(f"logit_bias has the key {key[:20]!r}, which is not a token id", param="logit_bias")
        bias[int(key)] = value
    return bias


def _job(body: GenerationRequest, terms: Terms, info: ModelInfo, prompts: Sequence[Prompt]) -> Job:
    n = body.n or 1
    prompts[0].sampling.check_vocabulary(info.vocab_size)
    grammar_field = constrained_field(body)
    return Job(
        prompts=tuple(prompts),
        terms=terms,
        n=n,
        num_samples=body.best_of or n,
        with_logprobs=prompts[0].sampling.logprobs is not None,
        include_timeline=bool(body.include_timeline),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        # The end of a grammar is the end of the answer, whatever ignore_eos says.
        eos_token_ids=() if body.ignore_eos and not grammar_field else info.eos_token_ids,
        return_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        grammar_field=grammar_field,
    )


def _split_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt is empty", param="prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def _prompt_ids(given: str | list[int], body: CompletionRequest, model: ServedModel, info: ModelInfo) -> list[int]:
    if isinstance(given, str):
        framed, cut = body.add_special_tokens is not False, body.truncate_prompt_tokens is not None
        return encode(given, model, info, "prompt", add_special_tokens=framed, will_be_cut=cut)
    return given


def _last_answer(body: ChatCompletionRequest) -> str:
    """The text that the answer goes on from; empty unless the last message is the assistant's."""
    last = body.messages[-1]
    if last.role != "assistant" or last.content is None:
        return ""
    return last.content if isinstance(last.content, str) else "\n".join(part.text or "" for part in last.content)


def _echo(given: str | Sequence[int], model: ServedModel) -> str:
    return given if isinstance(given, str) else model.tokenizer.decode(given, skip_special_tokens=False)
