"""One choice: the engine's token events -> text deltas, and the end that a stop string makes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.openai.answer_schemas import Finish
from gateway.openai.prompt_logprobs import EchoedToken
from gateway.requests.job import Job
from pageloom.choice_text import ChoiceText
from pageloom.detokenizer import StopStrings
from pageloom.errors import EngineError
from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs, TokensGenerated
from pageloom.parsing.message_parser import MessageDelta
from pageloom.parsing.tool_calls import ToolCallDelta, merged
from pageloom.timeline import Timeline
from pageloom.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token, its log-probabilities, and the number of characters before it in the text."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int


class ChoiceDelta(NamedTuple):
    """What a choice gained. `choice_index` counts over all prompts; `num_tokens` are the new ones, `token_ids` theirs
    if they were asked for. `text` is the answer's content; thinking and calls are beside it. `num_reasoning_tokens`
    of the new tokens are the thinking's. `stop_reason` is the stop string or the requested stop token that ended it;
    `timeline` comes with the finish if it was asked for. `echoed` are the prompt's tokens, once, before those of the
    choice.

    One is made for each token of each stream, so it is a tuple."""

    choice_index: int
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

    It is `stopped` once a stop string was found, or the only call that was wanted has ended: no more tokens are needed.
    That ends it, unless the timeline is asked for: that comes with the engine's own end.
    """

    def __init__(self, index: int, prompt_index: int, job: Job, tokenizer: Tokenizer, stops: StopStrings) -> None:
        prompt = job.prompts[prompt_index]
        self._index = index
        self._requested_stop_ids = frozenset(prompt.sampling.stop_token_ids)
        self._grammar_field = job.grammar_field
        self._include_timeline = job.include_timeline
        self._return_token_ids = job.return_token_ids
        self._text = ChoiceText(
            tokenizer,
            stops,
            prompt_token_ids=prompt.token_ids,
            skipped_ids=_skipped_ids(job, tokenizer),
            stop_token_ids=self._requested_stop_ids.union(job.eos_token_ids),
            include_stop=job.include_stop,
            min_tokens=prompt.sampling.min_tokens,
        )
        self._text.num_chars = len(prompt.echo)
        self._parser = None if job.message_format is None else job.message_format.new_parser()
        self.stopped = False
        self.finished = False

    def take(self, event: TokensGenerated) -> ChoiceDelta | None:
        """The delta of some tokens; None once stopped. Raises EngineError if tokens were lost on the way."""
        if self.finished or self.stopped:
            return None
        if event.first_index != self._text.num_tokens:
            raise EngineError(f"token {self._text.num_tokens} of choice {self._index} was lost on the way")
        before = self._text.num_tokens
        pieces: list[str] = []
        scored: list[ScoredToken] = []
        for position, token_id in enumerate(event.token_ids):
            if event.logprobs:
                scored.append(ScoredToken(token_id, event.logprobs[position], self._text.num_chars))
            pieces.append(self._text.push(token_id))
            if self._text.matched is not None:
                break
        num_tokens = self._text.num_tokens - before
        delta = ChoiceDelta(self._index, "".join(pieces), num_tokens, tuple(scored))
        if self._parser is not None:
            parts = self._parser.push(*pieces)
            delta = _with_parts(delta, parts)._replace(num_reasoning_tokens=parts.num_reasoning_tokens)
        if self._return_token_ids:
            delta = delta._replace(token_ids=event.token_ids[:num_tokens])
        self.stopped = self._text.matched is not None or (self._parser is not None and self._parser.ended)
        self.finished = self.stopped and not self._include_timeline
        if not self.finished:
            return delta
        return self._ended(delta._replace(finish="stop", stop_reason=self._text.matched))

    def finish(self, event: ChoiceFinished) -> ChoiceDelta | None:
        """The last delta; None once finished.

        Raises what `require_success` raises.
        """
        if self.finished:
            return None
        self.finished = True
        if self.stopped:
            return self._last("", "stop", self._text.matched, event)
        event.require_success(grammar_field=self._grammar_field)
        text = self._text.finish()
        if self._text.matched is not None:
            return self._last(text, "stop", self._text.matched, event)
        finish: Finish = "stop" if event.reason is FinishReason.STOP else "length"
        stop_reason = event.stop_token_id if event.stop_token_id in self._requested_stop_ids else None
        return self._last(text, finish, stop_reason, event)

    def _last(self, text: str, finish: Finish, stop_reason: str | int | None, event: ChoiceFinished) -> ChoiceDelta:
        delta = ChoiceDelta(self._index, text, 0)
        if self._parser is not None:
            delta = _with_parts(delta, self._parser.push(text))
        return self._ended(delta._replace(finish=finish, stop_reason=stop_reason, timeline=event.timeline))

    def _ended(self, delta: ChoiceDelta) -> ChoiceDelta:
        """With what the parser held back. An answer with calls ends by them, unless its length ended it, or a stop
        string within one: then the caller must not take it for whole."""
        if self._parser is None:
            return delta
        cuts_call = self._parser.in_call
        last = self._parser.finish()
        by_calls = delta.finish == "stop" and self._parser.num_calls and not cuts_call
        return delta._replace(
            text=delta.text + last.content,
            reasoning=delta.reasoning + last.reasoning,
            tool_calls=merged(delta.tool_calls + last.tool_calls),
            cuts_call=cuts_call,
            finish="tool_calls" if by_calls else delta.finish,
        )


def _with_parts(delta: ChoiceDelta, parts: MessageDelta) -> ChoiceDelta:
    return delta._replace(text=parts.content, reasoning=parts.reasoning, tool_calls=parts.tool_calls)


def _skipped_ids(job: Job, tokenizer: Tokenizer) -> frozenset[int]:
    if not job.skip_special_tokens:
        return frozenset()
    shown_ids = frozenset() if job.message_format is None else job.message_format.marker_token_ids
    return tokenizer.special_ids - shown_ids if shown_ids else tokenizer.special_ids
