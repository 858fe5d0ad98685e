"""One HTTP request at the engine: a stream per prompt, their events merged into one bounded queue of deltas.
Leaving it cancels the streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Self

from gateway.choice import Choice, ChoiceDelta
from gateway.job import Job
from gateway.metrics import RequestObserver
from gateway.prompt_logprobs import PromptScores, echoed_tokens
from pageloom.client import EngineClient
from pageloom.detokenizer import StopStrings
from pageloom.errors import EngineError, PageloomError
from pageloom.outputs import ChoiceFinished, GenerateEvent, PromptLogprobs, TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.tokenizer import Tokenizer

# A reader that is slower than the engine makes the queue fill, and then the client's buffer of each
# request, which joins tokens: what waits is bounded by max_tokens.
MAX_QUEUED_DELTAS = 256
# A choice that a stop string ended is cancelled at the engine, which says goodbye after its step.
GOODBYE_S = 1.0


class _PromptDone:
    """A prompt's last queue item."""


_PROMPT_DONE = _PromptDone()


class Generation:
    """Use as async context manager; read with `next_deltas` until it returns None."""

    def __init__(
        self, client: EngineClient, request_id: str, job: Job, tokenizer: Tokenizer, observer: RequestObserver
    ) -> None:
        self._client = client
        self._request_id = request_id
        self._job = job
        self._tokenizer = tokenizer
        self._observer = observer
        self._stops = StopStrings(job.stop)
        self._queue: asyncio.Queue[ChoiceDelta | _PromptDone | Exception] = asyncio.Queue(MAX_QUEUED_DELTAS)
        self._prompts_left = len(job.prompts)
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Of each prompt, if they are scored.
        self.prompt_scores = [
            PromptScores(len(prompt.token_ids)) if job.scores_prompts else None for prompt in job.prompts
        ]
        # By prompt, deltas that came before its scores were complete.
        self._held: dict[int, list[ChoiceDelta]] = {}
        self.num_completion_tokens = 0
        self.num_cached_tokens = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(index)) for index in range(len(self._job.prompts))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_deltas(self) -> list[ChoiceDelta] | None:
        """What has come since the last call, waiting for at least one; None when all choices have ended.

        Cancellation loses nothing. Raises what the engine's calls raise.
        """
        deltas: list[ChoiceDelta] = []
        while self._prompts_left and not deltas:
            if self._failure is not None:
                raise self._failure
            self._sort_in(await self._queue.get(), deltas)
            while self._failure is None and not self._queue.empty():
                self._sort_in(self._queue.get_nowait(), deltas)
        return deltas or None

    def _sort_in(self, item: ChoiceDelta | _PromptDone | Exception, deltas: list[ChoiceDelta]) -> None:
        if isinstance(item, ChoiceDelta):
            self.num_completion_tokens += item.num_tokens
            self._observer.on_delta(item)
            deltas.append(item)
        elif isinstance(item, _PromptDone):
            self._prompts_left -= 1
        else:
            # Raised at the next call: what came before it is delivered first.
            self._failure = item

    async def _run(self, prompt_index: int) -> None:
        try:
            await self._relay(prompt_index)
        except Exception as error:
            await self._queue.put(error)
        else:
            await self._queue.put(_PROMPT_DONE)

    async def _relay(self, prompt_index: int) -> None:
        job = self._job
        if job.generate or job.scores_prompts:
            await self._ask(prompt_index)
        if not job.generate:
            for index in self._choice_indexes(prompt_index):
                await self._queue.put(ChoiceDelta(index, "", 0, (), "length"))

    async def _ask(self, prompt_index: int) -> None:
        job, prompt = self._job, self._job.prompts[prompt_index]
        # One is enough to score a prompt.
        indexes = self._choice_indexes(prompt_index)[: None if job.generate else 1]
        request = GenerateRequest(
            request_id=f"{self._request_id}-{prompt_index}",
            prompt_token_ids=prompt.token_ids,
            sampling=prompt.sampling,
            n=len(indexes),
            priority=job.priority,
            cache_salt=job.cache_salt,
            tenant=job.terms.tenant,
            deadline_s=job.terms.left_s(),
            include_timeline=job.include_timeline,
        )
        choices = [Choice(index, prompt_index, job, self._tokenizer, self._stops) for index in indexes]
        scores = self.prompt_scores[prompt_index]
        if scores is not None and scores.complete:
            await self._release(prompt_index, scores)
        cached: list[int] = []
        async with aclosing(self._client.generate(request)) as events:
            async for event in events:
                if isinstance(event, PromptLogprobs):
                    await self._take_scores(event, prompt_index, scores)
                    continue
                await self._take(event, choices, prompt_index, request.request_id, cached)
                if all(choice.finished for choice in choices):
                    break
            await _goodbyes(events, cached)
        if not all(choice.finished for choice in choices) or not (scores is None or scores.complete):
            raise EngineError("the engine ended the stream too early")
        # Later choices find what the first one computed; the request itself found the least of them.
        self.num_cached_tokens += min(cached, default=0)

    async def _take(
        self,
        event: TokensGenerated | ChoiceFinished,
        choices: list[Choice],
        prompt_index: int,
        request_id: str,
        cached: list[int],
    ) -> None:
        choice = choices[event.choice_index]
        if isinstance(event, ChoiceFinished):
            cached.append(event.num_cached_tokens)
            delta = choice.finish(event)
        else:
            delta = choice.take(event)
        if delta is None:
            return
        if self._job.generate:
            await self._deliver(delta, prompt_index)
        if choice.stopped and not isinstance(event, ChoiceFinished):
            # If the engine is gone, the stream says so.
            with suppress(PageloomError):
                await self._client.cancel(request_id, (event.choice_index,))

    async def _deliver(self, delta: ChoiceDelta, prompt_index: int) -> None:
        scores = self.prompt_scores[prompt_index]
        if scores is None or scores.complete:
            await self._queue.put(delta)
        else:
            # Another choice than the first may be ahead of it.
            self._held.setdefault(prompt_index, []).append(delta)

    async def _take_scores(self, part: PromptLogprobs, prompt_index: int, scores: PromptScores | None) -> None:
        if scores is None:
            raise EngineError("the engine brought log-probabilities of a prompt that nobody asked for")
        scores.take(part)
        if scores.complete:
            await self._release(prompt_index, scores)

    async def _release(self, prompt_index: int, scores: PromptScores) -> None:
        """The prompt is scored: its echo may go out, and then what its choices have so far."""
        num_top = self._job.num_echo_logprobs
        if num_top is not None:
            echoed = echoed_tokens(self._job.prompts[prompt_index], scores, num_top)
            for index in self._choice_indexes(prompt_index):
                await self._queue.put(ChoiceDelta(index, "", 0, echoed=echoed))
        for delta in self._held.pop(prompt_index, ()):
            await self._queue.put(delta)

    def _choice_indexes(self, prompt_index: int) -> range:
        first = prompt_index * self._job.num_samples
        return range(first, first + self._job.num_samples)


async def _goodbyes(events: AsyncGenerator[GenerateEvent, None], cached: list[int]) -> None:
    """Reads to the end of the stream, so that closing it cancels nothing. The end of a choice at the
    engine also tells how much of its prompt was cached."""
    with suppress(TimeoutError, PageloomError):
        async with asyncio.timeout(GOODBYE_S):
            async for event in events:
                if isinstance(event, ChoiceFinished):
                    cached.append(event.num_cached_tokens)
