"""The engine's events for one prompt -> its RequestOutput. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pageloom.choice_text import ChoiceText
from pageloom.detokenizer import StopStrings
from pageloom.errors import EngineError, InvalidRequest
from pageloom.llm import outputs
from pageloom.llm.outputs import (
    ChatAnswer,
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
    ToolCall,
)
from pageloom.llm.prompts import Prompt
from pageloom.llm.sampling_params import RequestOutputKind, SamplingParams
from pageloom.outputs import ChoiceFinished, GenerateEvent, PromptLogprobs, TokenLogprobs
from pageloom.outputs import FinishReason as EngineFinish
from pageloom.parsing.message_parser import MessageFormat
from pageloom.parsing.tool_calls import merged
from pageloom.requests import GenerateRequest
from pageloom.timeline import Timeline
from pageloom.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt, what is asked of its answers, and the engine's part of that, whose grammar the argument `grammar_field`
    gave. `arrived_s` is of `time.time`. `message_format` tells the parts of an answer apart, if it may have several."""

    prompt: Prompt
    params: SamplingParams
    request: GenerateRequest
    request_id: str
    eos_token_ids: tuple[int, ...]
    arrived_s: float
    message_format: MessageFormat | None = None
    grammar_field: str = ""

    def naming_argument(self, error: InvalidRequest) -> InvalidRequest:
        """What the scheduler says of the grammar, with the name of the argument that gave it."""
        return error.for_caller(self.grammar_field) if error.param == "grammar" else error


class Answer:
    """`stopped` are choices that a stop string has ended and the engine does not know of yet. `aborted` says that who
    asked does not want the rest."""

    def __init__(self, question: Question, tokenizer: Tokenizer) -> None:
        self._question = question
        self._tokenizer = tokenizer
        stops = StopStrings(question.params.stop_strings)
        self._choices = [_Choice(index, question, tokenizer, stops) for index in range(question.params.n)]
        self._prompt_logprobs: list[outputs.TokenLogprobs | None] | None = None
        if question.params.prompt_logprobs is not None:
            self._prompt_logprobs = [None]
        self._num_cached: list[int] = []
        self._timelines: list[Timeline] = []
        self.stopped: list[int] = []
        self.aborted = False

    @property
    def finished(self) -> bool:
        return all(choice.finish_reason is not None for choice in self._choices)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    def take(self, events: Sequence[GenerateEvent]) -> None:
        """Raises EngineError, Unavailable or DeadlineExceeded if the engine gave a choice up."""
        for event in events:
            if isinstance(event, PromptLogprobs):
                self._take_prompt_logprobs(event)
            elif isinstance(event, ChoiceFinished):
                self._num_cached.append(event.num_cached_tokens)
                if event.timeline is not None:
                    self._timelines.append(event.timeline)
                self._choices[event.choice_index].finish(event, aborted=self.aborted)
            else:
                choice = self._choices[event.choice_index]
                if choice.push(event.first_index, event.token_ids, event.logprobs):
                    self.stopped.append(event.choice_index)

    def output(self) -> RequestOutput:
        """All so far; with RequestOutputKind.DELTA what has come since the last call."""
        delta = self._question.params.output_kind is RequestOutputKind.DELTA
        prompt = self._question.prompt
        return RequestOutput(
            request_id=self._question.request_id,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.token_ids),
            prompt_logprobs=self._prompt_logprobs,
            outputs=[choice.output(delta=delta) for choice in self._choices],
            finished=self.finished,
            metrics=self._metrics() if self.finished else None,
            # Later choices find what the first one computed; the request itself found the least of them.
            num_cached_tokens=min(self._num_cached, default=None),
        )

    def _take_prompt_logprobs(self, part: PromptLogprobs) -> None:
        assert self._prompt_logprobs is not None
        token_ids = self._question.prompt.token_ids
        for row, rank in enumerate(part.ranks):
            index = part.first_index + row
            entry = _entry(token_ids[index], part.of_token(index), rank, self._tokenizer)
            self._prompt_logprobs.append(entry)

    def _metrics(self) -> RequestMetrics:
        arrived_s = self._question.arrived_s
        starts = [timeline.runs[0].start_s for timeline in self._timelines if timeline.runs]
        firsts = [timeline.first_token_s for timeline in self._timelines if timeline.first_token_s is not None]
        lasts = [timeline.finished_s for timeline in self._timelines if timeline.finished_s is not None]
        return RequestMetrics(
            arrival_time=arrived_s,
            scheduled_ts=arrived_s + min(starts) if starts else None,
            first_token_ts=arrived_s + min(firsts) if firsts else None,
            last_token_ts=arrived_s + max(lasts) if lasts else None,
            num_generation_tokens=self.num_output_tokens,
            timelines=tuple(self._timelines),
        )


class _Choice:
    def __init__(self, index: int, question: Question, tokenizer: Tokenizer, stops: StopStrings) -> None:
        params = question.params
        self._index = index
        self._tokenizer = tokenizer
        self._format = question.message_format
        self._grammar_field = question.grammar_field
        self._requested_stop_ids = frozenset(params.stop_token_ids or ())
        self._text: ChoiceText | None = None
        if params.detokenize:
            self._text = ChoiceText(
                tokenizer,
                stops,
                prompt_token_ids=question.prompt.token_ids,
                skipped_ids=_skipped_ids(question, tokenizer),
                stop_token_ids=self._requested_stop_ids.union(question.eos_token_ids),
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )
        self._pieces: list[str] = []
        self._logprobs: list[outputs.TokenLogprobs] | None = None if params.logprobs is None else []
        self._num_shown_pieces = self._num_shown_tokens = 0
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None

    def push(self, first_index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> bool:
        """Whether a stop string was completed. What comes after that is dropped. Raises EngineError if tokens were lost
        on the way."""
        if self._matched is not None:
            return False
        if first_index != len(self.token_ids):
            raise EngineError(f"token {len(self.token_ids)} of choice {self._index} was lost on the way")
        if self._text is None:
            self._keep(token_ids, logprobs)
            return False
        for num_taken, token_id in enumerate(token_ids, start=1):
            self._pieces.append(self._text.push(token_id))
            if self._text.matched is not None:
                self._keep(token_ids[:num_taken], logprobs[:num_taken])
                return True
        self._keep(token_ids, logprobs)
        return False

    def finish(self, event: ChoiceFinished, *, aborted: bool) -> None:
        """Raises what `ChoiceFinished.require_success` raises, if the engine gave up."""
        if self._matched is None:
            if not aborted:
                event.require_success(grammar_field=self._grammar_field)
            if self._text is not None:
                self._pieces.append(self._text.finish())
        if self._matched is not None:
            self.finish_reason, self._stop_reason = "stop", self._matched
        elif event.reason is EngineFinish.STOP:
            self.finish_reason = "stop"
            self._stop_reason = event.stop_token_id if event.stop_token_id in self._requested_stop_ids else None
        else:
            self.finish_reason = "length" if event.reason is EngineFinish.LENGTH else "abort"

    def output(self, *, delta: bool) -> CompletionOutput:
        first_piece = self._num_shown_pieces if delta else 0
        first_token = self._num_shown_tokens if delta else 0
        self._num_shown_pieces, self._num_shown_tokens = len(self._pieces), len(self.token_ids)
        whole = CompletionOutput(
            index=self._index,
            text="".join(self._pieces[first_piece:]),
            token_ids=self.token_ids[first_token:],
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            message=self._message() if self.finish_reason is not None else None,
        )
        if self._logprobs is None:
            return whole
        drawn = zip(self.token_ids, self._logprobs, strict=True)
        return replace(
            whole,
            logprobs=self._logprobs[first_token:],
            cumulative_logprob=sum(entry[token_id].logprob for token_id, entry in drawn),
        )

    def _message(self) -> ChatAnswer | None:
        if self._format is None:
            return None
        parser = self._format.new_parser()
        parts, last = parser.push("".join(self._pieces)), parser.finish()
        return ChatAnswer(
            content=parts.content + last.content,
            reasoning=parts.reasoning + last.reasoning,
            tool_calls=tuple(
                ToolCall(id=call.id or "", name=call.name or "", arguments=call.arguments)
                for call in merged(parts.tool_calls + last.tool_calls)
            ),
        )

    @property
    def _matched(self) -> str | None:
        return None if self._text is None else self._text.matched

    def _keep(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self.token_ids += token_ids
        if self._logprobs is not None:
            self._logprobs += (
                _entry(token_id, of_token, None, self._tokenizer)
                for token_id, of_token in zip(token_ids, logprobs, strict=True)
            )


def _skipped_ids(question: Question, tokenizer: Tokenizer) -> frozenset[int]:
    if not question.params.skip_special_tokens:
        return frozenset()
    shown_ids = frozenset() if question.message_format is None else question.message_format.marker_token_ids
    return tokenizer.special_ids - shown_ids


def _entry(token_id: int, logprobs: TokenLogprobs, rank: int | None, tokenizer: Tokenizer) -> outputs.TokenLogprobs:
    """The token itself first, then the likeliest ones that were asked for."""

    def one(of_id: int, logprob: float, place: int | None) -> Logprob:
        return Logprob(logprob, place, tokenizer.token_bytes(of_id).decode("utf-8", "replace"))

    top = dict(zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True))
    places = {top_id: place for place, top_id in enumerate(top, start=1)}
    entry = {token_id: one(token_id, logprobs.logprob, rank or places.get(token_id))}
    return entry | {
        top_id: one(top_id, logprob, places[top_id]) for top_id, logprob in top.items() if top_id != token_id
    }
