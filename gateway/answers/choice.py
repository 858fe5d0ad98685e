"""One choice: the engine's token events -> text deltas, and the end that a stop string makes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gateway.openai.prompt_logprobs import EchoedToken
from gateway.parsing.message_parser import MessageDelta
from gateway.parsing.tool_calls import ToolCallDelta, merged
from gateway.requests.job import Job
from pageloom.detokenizer import Detokenizer, StopMatcher, StopStrings
from pageloom.errors import DeadlineExceeded, EngineError, Unavailable
from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs, TokensGenerated
from pageloom.timeline import Timeline
from pageloom.tokenizer import Tokenizer

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token, its log-probabilities, and the number of characters before it in the text."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a choice gained. `index` counts over all prompts; `num_tokens` are the new ones, `token_ids` theirs if they
    were asked for. `text` is the answer's content; thinking and calls are beside it. `num_reasoning_tokens` of the new
    tokens are the thinking's.
    `stop_reason` is the stop string or the requested stop token that ended it; `timeline` comes with the
    finish if it was asked for. `echoed` are the prompt's tokens, once, before those of the choice."""

    index: int
    text: str
    num_tokens: int
    scored: tuple[ScoredToken, ...] = ()
    finish: Finish | None = None
    stop_reason: str | int | None = None
    timeline: Timeline | None = None
    token_ids: tuple[int, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    # The end came within a call, whose arguments are not whole.
    cuts_call: bool = False
    num_reasoning_tokens: int = 0
    echoed: tuple[EchoedToken, ...] = ()


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
            skipped_ids=_skipped_ids(job, tokenizer),
            prompt_token_ids=prompt.token_ids,
        )
        self._matcher = StopMatcher(stops, include_match=job.include_stop)
        self._parser = None if job.message_format is None else job.message_format.new_parser()
        self._num_tokens = 0
        self._num_chars = len(prompt.echo)
        self.finished = False

    def has_stopped(self) -> bool:
        """A stop string was found, or the only call that was wanted has ended: no more tokens are needed."""
        return self._matcher.matched is not None or (self._parser is not None and self._parser.ended)

    def take(self, event: TokensGenerated) -> ChoiceDelta | None:
        """The delta of some tokens; None once stopped. Raises EngineError if tokens were lost on the way."""
        if self.finished or self.has_stopped():
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
        num_tokens = self._num_tokens - before
        delta = ChoiceDelta(self._index, "".join(pieces), num_tokens, tuple(scored))
        if self._parser is not None:
            parts = self._parser.push(*pieces)
            delta = replace(_with_parts(delta, parts), num_reasoning_tokens=parts.num_reasoning_tokens)
        if self._return_token_ids:
            delta = replace(delta, token_ids=event.token_ids[:num_tokens])
        self.finished = self.has_stopped() and not self._include_timeline
        if not self.finished:
            return delta
        return self._ended(replace(delta, finish="stop", stop_reason=self._matcher.matched))

    def finish(self, event: ChoiceFinished) -> ChoiceDelta | None:
        """The last delta; None once finished.

        Raises EngineError or Unavailable if the engine gave up, DeadlineExceeded if it had no more time.
        """
        if self.finished:
            return None
        self.finished = True
        if self.has_stopped():
            return self._last("", "stop", self._matcher.matched, event)
        require_success(event)
        text = self._matcher.push(self._detokenizer.finish())
        if self._matcher.matched is not None:
            return self._last(text, "stop", self._matcher.matched, event)
        finish: Finish = "stop" if event.reason is FinishReason.STOP else "length"
        stop_reason = event.stop_token_id if event.stop_token_id in self._requested_stop_ids else None
        return self._last(text + self._matcher.finish(), finish, stop_reason, event)

    def _last(self, text: str, finish: Finish, stop_reason: str | int | None, event: ChoiceFinished) -> ChoiceDelta:
        delta = ChoiceDelta(self._index, text, 0)
        if self._parser is not None:
            delta = _with_parts(delta, self._parser.push(text))
        return self._ended(replace(delta, finish=finish, stop_reason=stop_reason, timeline=event.timeline))

    def _ended(self, delta: ChoiceDelta) -> ChoiceDelta:
        """With what the parser held back. An answer with calls ends by them, unless its length ended it, or a stop
        string within one: then the caller must not take it for whole."""
        if self._parser is None:
            return delta
        cuts_call = self._parser.in_call
        last = self._parser.finish()
        by_calls = delta.finish == "stop" and self._parser.num_calls and not cuts_call
        return replace(
            delta,
            text=delta.text + last.content,
            reasoning=delta.reasoning + last.reasoning,
            tool_calls=merged(delta.tool_calls + last.tool_calls),
            cuts_call=cuts_call,
            finish="tool_calls" if by_calls else delta.finish,
        )

    def _text_of(self, token_id: int) -> str:
        # The sampler cannot draw a stop token before min_tokens, so a drawn one ends the choice.
        if token_id in self._stop_ids and not self._include_stop:
            return ""
        text = self._detokenizer.push(token_id)
        self._num_chars += len(text)
        return text if self._num_tokens <= self._min_tokens else self._matcher.push(text)


def _with_parts(delta: ChoiceDelta, parts: MessageDelta) -> ChoiceDelta:
    return replace(delta, text=parts.content, reasoning=parts.reasoning, tool_calls=parts.tool_calls)


def require_success(event: ChoiceFinished) -> None:
    """Raises EngineError or Unavailable if the engine gave up, DeadlineExceeded if it had no more time."""
    if event.reason is FinishReason.ERROR:
        raise EngineError(event.error_message or "the engine failed")
    if event.reason is FinishReason.CANCELLED:
        raise Unavailable(event.error_message or "the engine cancelled the request")
    if event.reason is FinishReason.DEADLINE:
        raise DeadlineExceeded(event.error_message or "the request's deadline passed before it was answered")


def _skipped_ids(job: Job, tokenizer: Tokenizer) -> frozenset[int]:
    if not job.skip_special_tokens:
        return frozenset()
    shown_ids = frozenset() if job.message_format is None else job.message_format.marker_token_ids
    return tokenizer.special_ids - shown_ids if shown_ids else tokenizer.special_ids
