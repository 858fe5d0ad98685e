"""One choice: the engine's token events -> text deltas, and the end that a stop string makes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.job import Job
from pageloom.detokenizer import Detokenizer, StopMatcher, StopStrings
from pageloom.errors import DeadlineExceeded, EngineError, Unavailable
from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs, TokensGenerated
from pageloom.timeline import Timeline
from pageloom.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token, its log-probabilities, and the number of characters before it in the text."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a choice gained. `index` counts over all prompts; `num_tokens` are the new ones, and `token_ids` theirs
    if they were asked for.
    `stop_reason` is the stop string or the requested stop token that ended it; `timeline` comes with the
    finish if it was asked for."""

    index: int
    text: str
    num_tokens: int
    scored: tuple[ScoredToken, ...] = ()
    finish: Finish | None = None
    stop_reason: str | int | None = None
    timeline: Timeline | None = None
    token_ids: tuple[int, ...] = ()


class Choice:
    """Text state of one choice. After a delta with a finish, everything else from the engine is ignored.

    A stop string ends it, unless the timeline is asked for: that comes with the engine's own end.
    """

    def __init__(self, index: int, prompt_index: int, job: Job, tokenizer: Tokenizer, stops: StopStrings) -> None:
        prompt = job.prompts[prompt_index]
        self._index = index
        self._min_tokens = prompt.sampling.min_tokens
        self._requested_stop_ids = frozenset(prompt.sampling.stop_token_ids)
        self._stop_ids = self._requested_stop_ids.union(job.eos_token_ids)
        self._include_stop = job.include_stop
        self._include_timeline = job.include_timeline
        self._return_token_ids = job.return_token_ids
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes,
            skipped_ids=tokenizer.special_ids if job.skip_special_tokens else frozenset(),
            prompt_token_ids=prompt.token_ids,
        )
        self._matcher = StopMatcher(stops, include_match=job.include_stop)
        self._num_tokens = 0
        self._num_chars = len(prompt.echo)
        self.finished = False

    @property
    def stopped(self) -> bool:
        """A stop string was found: no more tokens are needed."""
        return self._matcher.matched is not None

    def take(self, event: TokensGenerated) -> ChoiceDelta | None:
        """The delta of some tokens; None once stopped. Raises EngineError if tokens were lost on the way."""
        if self.finished or self.stopped:
            return None
        if event.first_index != self._num_tokens:
            raise EngineError(f"token {self._num_tokens} of choice {self._index} was lost on the way")
        before = self._num_tokens
        pieces: list[str] = []
        scored: list[ScoredToken] = []
        for position, token_id in enumerate(event.token_ids):
            self._num_tokens += 1
            if event.logprobs:
                scored.append(ScoredToken(token_id, event.logprobs[position], self._num_chars))
            pieces.append(self._text_of(token_id))
            if self._matcher.matched is not None:
                break
        self.finished = self._matcher.matched is not None and not self._include_timeline
        num_tokens = self._num_tokens - before
        return ChoiceDelta(
            self._index,
            "".join(pieces),
            num_tokens,
            tuple(scored),
            "stop" if self.finished else None,
            self._matcher.matched if self.finished else None,
            token_ids=event.token_ids[:num_tokens] if self._return_token_ids else (),
        )

    def finish(self, event: ChoiceFinished) -> ChoiceDelta | None:
        """The last delta; None once finished.

        Raises EngineError or Unavailable if the engine gave up, DeadlineExceeded if it had no more time.
        """
        if self.finished:
            return None
        self.finished = True
        if self.stopped:
            return ChoiceDelta(self._index, "", 0, (), "stop", self._matcher.matched, event.timeline)
        if event.reason is FinishReason.ERROR:
            raise EngineError(event.error_message or "the engine failed")
        if event.reason is FinishReason.CANCELLED:
            raise Unavailable(event.error_message or "the engine cancelled the request")
        if event.reason is FinishReason.DEADLINE:
            raise DeadlineExceeded(event.error_message or "the request's deadline passed before it was answered")
        text = self._matcher.push(self._detokenizer.finish())
        if self._matcher.matched is not None:
            return ChoiceDelta(self._index, text, 0, (), "stop", self._matcher.matched, event.timeline)
        finish: Finish = "stop" if event.reason is FinishReason.STOP else "length"
        stop_reason = event.stop_token_id if event.stop_token_id in self._requested_stop_ids else None
        return ChoiceDelta(self._index, text + self._matcher.finish(), 0, (), finish, stop_reason, event.timeline)

    def _text_of(self, token_id: int) -> str:
        # The sampler cannot draw a stop token before min_tokens, so a drawn one ends the choice.
        if token_id in self._stop_ids and not self._include_stop:
            return ""
        text = self._detokenizer.push(token_id)
        self._num_chars += len(text)
        return text if self._num_tokens <= self._min_tokens else self._matcher.push(text)
