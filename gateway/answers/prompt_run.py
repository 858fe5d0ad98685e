"""One prompt at the engine: its request, and its events -> the deltas of its choices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.answers.choice import Choice, ChoiceDelta
from gateway.openai.prompt_logprobs import PromptScores, echoed_tokens
from gateway.requests.job import Job
from pageloom.detokenizer import StopStrings
from pageloom.errors import EngineError
from pageloom.outputs import ChoiceFinished, GenerateEvent, PromptLogprobs, TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.tokenizer import Tokenizer


class PromptRun:
    """`scores` is of the prompt, if it is scored; `stopped` are choices, by their number at the engine, that a stop
    string has ended and the engine has not."""

    def __init__(self, job: Job, prompt_index: int, tokenizer: Tokenizer, stops: StopStrings) -> None:
        self._job = job
        self._prompt = job.prompts[prompt_index]
        first = prompt_index * job.num_samples
        self._indexes = range(first, first + job.num_samples)
        # One is enough to score a prompt.
        asked = self._indexes if job.generate else self._indexes[: int(job.scores_prompts)]
        self._choices = [Choice(index, prompt_index, job, tokenizer, stops) for index in asked]
        self._num_unfinished = len(self._choices)
        self._num_cached: list[int] = []
        # Deltas that came before the prompt's scores were complete.
        self._held: list[ChoiceDelta] = []
        self.scores = PromptScores(len(self._prompt.token_ids)) if job.scores_prompts else None
        self.stopped: list[int] = []

    @property
    def asks(self) -> bool:
        """Whether the engine has to do something for it."""
        return bool(self._choices)

    @property
    def finished(self) -> bool:
        """No more deltas will come."""
        return not self._num_unfinished

    @property
    def num_cached_tokens(self) -> int:
        """Later choices find what the first one computed; the request itself found the least of them."""
        return min(self._num_cached, default=0)

    def request(self, request_id: str) -> GenerateRequest:
        """Raises DeadlineExceeded if no time is left for it."""
        job = self._job
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=self._prompt.token_ids,
            sampling=self._prompt.sampling,
            n=len(self._choices),
            priority=job.priority,
            cache_salt=job.cache_salt,
            tenant=job.terms.tenant,
            deadline_s=job.terms.left_s(),
            include_timeline=job.include_timeline,
        )

    def begin(self) -> Iterator[ChoiceDelta]:
        """What there is to say before the engine has answered."""
        if self.scores is not None and self.scores.complete:
            yield from self._echo(self.scores)

    def take(self, event: GenerateEvent) -> Iterable[ChoiceDelta]:
        """Raises what `Choice.finish` raises if the engine gave a choice up."""
        if isinstance(event, PromptLogprobs):
            return self._take_scores(event)
        delta = self._take(event)
        if delta is None or not self._job.generate:
            return ()
        if self.scores is None or self.scores.complete:
            return (delta,)
        # Another choice than the first may be ahead of it.
        self._held.append(delta)
        return ()

    def end(self) -> Iterator[ChoiceDelta]:
        """The engine has said all. Raises EngineError if something is missing."""
        if self._num_unfinished or not (self.scores is None or self.scores.complete):
            raise EngineError("the engine ended the stream too early")
        if not self._job.generate:
            yield from (ChoiceDelta(index, "", 0, (), "length") for index in self._indexes)

    def _take(self, event: TokensGenerated | ChoiceFinished) -> ChoiceDelta | None:
        choice = self._choices[event.choice_index]
        was_finished, was_stopped = choice.finished, choice.stopped
        if isinstance(event, ChoiceFinished):
            self._num_cached.append(event.num_cached_tokens)
            delta = choice.finish(event)
        else:
            delta = choice.take(event)
            if choice.stopped and not was_stopped:
                self.stopped.append(event.choice_index)
        self._num_unfinished -= choice.finished and not was_finished
        return delta

    def _take_scores(self, part: PromptLogprobs) -> Iterable[ChoiceDelta]:
        if self.scores is None:
            raise EngineError("the engine brought log-probabilities of a prompt that nobody asked for")
        self.scores.take(part)
        return self._echo(self.scores) if self.scores.complete else ()

    def _echo(self, scores: PromptScores) -> Iterator[ChoiceDelta]:
        """The prompt is scored: its echo may go out, and then what its choices have so far."""
        num_top = self._job.num_echo_logprobs
        if num_top is not None:
            echoed = echoed_tokens(self._prompt, scores, num_top)
            yield from (ChoiceDelta(index, "", 0, echoed=echoed) for index in self._indexes)
        held, self._held = self._held, []
        yield from held
