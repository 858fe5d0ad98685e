"""How likely were the tokens of a prompt? The engine's log-probabilities of it in the shapes of the two APIs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import orjson

from gateway.requests.job import Job, Prompt
from pageloom.detokenizer import Detokenizer
from pageloom.errors import EngineError, InvalidRequest
from pageloom.outputs import PromptLogprobs, TokenLogprobs
from pageloom.tokenizer import Tokenizer

# Log-probabilities in one answer, of all its prompts: some 50 MB of JSON.
MAX_PROMPT_LOGPROBS_IN_ALL = 1 << 20
# JSON has no minus infinity; OpenAI writes this.
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class EchoedToken:
    """A prompt token, its log-probabilities (None for the first, which follows nothing), and the number of characters
    before it in the text."""

    token_id: int
    logprobs: TokenLogprobs | None
    text_offset: int


class PromptScores:
    """The log-probabilities of one prompt's tokens, as the engine tells them: in parts, one after the other."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        # The first token has none.
        self._num_known = 1
        self._parts: list[PromptLogprobs] = []

    @property
    def complete(self) -> bool:
        return self._num_known >= self._num_tokens

    def take(self, part: PromptLogprobs) -> None:
        """Raises EngineError if a part was lost on the way."""
        if part.first_index != self._num_known:
            raise EngineError(f"the log-probability of prompt token {self._num_known} was lost on the way")
        self._num_known += len(part.logprobs)
        self._parts.append(part)

    def tokens(self) -> Iterator[tuple[TokenLogprobs, int]]:
        """Of each token from the second on, its log-probabilities and its rank."""
        for part in self._parts:
            for row, rank in enumerate(part.ranks):
                yield part.of_token(part.first_index + row), rank


def with_scored_prompts(job: Job, tokenizer: Tokenizer) -> Job:
    """The job with what its prompts need to be scored, if they are to be. Raises InvalidRequest if that is too much."""
    if not job.scores_prompts:
        return job
    num_top = max(job.num_echo_logprobs or 0, job.num_prompt_logprobs or 0)
    num_logprobs = (num_top + 1) * job.num_prompt_tokens
    if num_logprobs > MAX_PROMPT_LOGPROBS_IN_ALL:
        param = "logprobs" if job.num_prompt_logprobs is None else "prompt_logprobs"
        raise InvalidRequest(
            f"{param} asks for {num_logprobs} log-probabilities of prompt tokens, at most "
            f"{MAX_PROMPT_LOGPROBS_IN_ALL} are accepted",
            param=param,
        )
    return replace(job, prompts=tuple(_scored(prompt, job, num_top, tokenizer) for prompt in job.prompts))


def _scored(prompt: Prompt, job: Job, num_top: int, tokenizer: Tokenizer) -> Prompt:
    sampling = replace(prompt.sampling, prompt_logprobs=num_top)
    if not job.generate:
        # The engine draws a token after each prompt, which nobody sees.
        sampling = replace(sampling, max_tokens=1, min_tokens=0)
    offsets = () if job.num_echo_logprobs is None else text_offsets(prompt.token_ids, prompt.echo, tokenizer)
    return replace(prompt, sampling=sampling, echo_offsets=offsets)


def text_offsets(token_ids: Sequence[int], text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Characters of a prompt's text before each of its tokens. What the tokenizer has added to the text, such as a
    token for its beginning, takes none."""
    detokenizer = Detokenizer(tokenizer.token_bytes)
    offsets = []
    at = 0
    for token_id in token_ids:
        offsets.append(at)
        shown = detokenizer.push(token_id)
        if token_id not in tokenizer.special_ids or text.startswith(shown, at):
            at = min(at + len(shown), len(text))
    return tuple(offsets)


def echoed_tokens(prompt: Prompt, scores: PromptScores, num_top: int) -> tuple[EchoedToken, ...]:
    """The prompt's tokens with `num_top` of the likeliest at each; the prompt must have its `echo_offsets`."""
    echoed = [EchoedToken(prompt.token_ids[0], None, 0)]
    places = zip(prompt.token_ids[1:], prompt.echo_offsets[1:], scores.tokens(), strict=True)
    for token_id, offset, (logprobs, _) in places:
        echoed.append(EchoedToken(token_id, _cut(logprobs, num_top), offset))
    return tuple(echoed)


def prompt_logprobs_json(
    job: Job, scores: Sequence[PromptScores | None], tokenizer: Tokenizer
) -> list[orjson.Fragment]:
    """vLLM's `prompt_logprobs` of each prompt: null, then for each token an object by token id, which has the token
    itself first and then the likeliest."""
    assert job.num_prompt_logprobs is not None
    answers = []
    for prompt, of_prompt in zip(job.prompts, scores, strict=True):
        assert of_prompt is not None
        entries = [b"null"]
        for token_id, (logprobs, rank) in zip(prompt.token_ids[1:], of_prompt.tokens(), strict=True):
            entries.append(_entry(token_id, rank, _cut(logprobs, job.num_prompt_logprobs), tokenizer))
        answers.append(orjson.Fragment(b"[" + b",".join(entries) + b"]"))
    return answers


def _entry(token_id: int, rank: int, logprobs: TokenLogprobs, tokenizer: Tokenizer) -> bytes:
    ranked = [(token_id, logprobs.logprob, rank)]
    top = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
    ranked += [(top_id, logprob, place) for place, (top_id, logprob) in enumerate(top, start=1) if top_id != token_id]
    return orjson.dumps(
        {
            str(one): {
                "logprob": max(logprob, LOWEST_LOGPROB),
                "rank": place,
                "decoded_token": tokenizer.token_bytes(one).decode("utf-8", "replace"),
            }
            for one, logprob, place in ranked
        }
    )


def _cut(logprobs: TokenLogprobs, num_top: int) -> TokenLogprobs:
    if len(logprobs.top_token_ids) == num_top:
        return logprobs
    return TokenLogprobs(logprobs.logprob, logprobs.top_token_ids[:num_top], logprobs.top_logprobs[:num_top])
