"""One HTTP request at the engine: a stream for each of its prompts, read by one task. Leaving it cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from gateway.answers.choice import ChoiceDelta
from gateway.answers.prompt_run import PromptRun
from gateway.answers.token_counts import TokenCounts
from gateway.metrics import RequestObserver
from gateway.openai.prompt_logprobs import PromptScores
from gateway.requests.job import Job
from pageloom.client import EngineClient
from pageloom.detokenizer import StopStrings
from pageloom.engine_session import EngineStream
from pageloom.errors import InvalidRequest, PageloomError
from pageloom.tokenizer import Tokenizer
from pageloom.wakeup import Wakeup

# A choice that a stop string ended is cancelled at the engine, which says goodbye after its step.
GOODBYE_S = 1.0


class Generation:
    """Use as async context manager; read with `next_deltas` until it returns None.

    A reader that is slower than the engine makes tokens join in the streams' buffers: what waits is bounded by
    max_tokens.
    """

    def __init__(
        self, client: EngineClient, request_id: str, job: Job, tokenizer: Tokenizer, observer: RequestObserver
    ) -> None:
        self._client = client
        self._request_id = request_id
        self._observer = observer
        self._grammar_field = job.grammar_field
        stops = StopStrings(job.stop)
        self._runs = [PromptRun(job, index, tokenizer, stops) for index in range(len(job.prompts))]
        self._wakeup = Wakeup()
        self._streams: list[EngineStream] = []
        # What still brings deltas.
        self._open: list[tuple[PromptRun, EngineStream]] = []
        self._ready: list[ChoiceDelta] = []
        self._failure: Exception | None = None
        self._num_prompt_tokens = job.num_prompt_tokens
        self._num_completion_tokens = 0
        self._num_reasoning_tokens = 0 if job.thinks else None

    @property
    def counts(self) -> TokenCounts:
        """The tokens so far."""
        num_cached = 0 if self._open else sum(run.num_cached_tokens for run in self._runs)
        return TokenCounts(self._num_prompt_tokens, self._num_completion_tokens, num_cached, self._num_reasoning_tokens)

    @property
    def prompt_scores(self) -> list[PromptScores | None]:
        """Of each prompt, if they are scored; complete when it has ended."""
        return [run.scores for run in self._runs]

    async def __aenter__(self) -> Self:
        try:
            for index, run in enumerate(self._runs):
                self._ready += run.begin()
                if not run.asks:
                    self._ready += run.end()
                    continue
                stream = self._client.start(run.request(f"{self._request_id}-{index}"), self._wakeup)
                self._streams.append(stream)
                self._open.append((run, stream))
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def wake(self) -> None:
        """Makes `next_deltas` return, if with nothing."""
        self._wakeup.wake()

    async def next_deltas(self) -> list[ChoiceDelta] | None:
        """What has come since the last call, waiting for something or `wake`; None when all choices have ended.

        Cancellation loses nothing. Raises what the engine's calls raise.
        """
        if not self._ready and self._open and self._failure is None:
            await self._wakeup.wait()
            self._collect()
        if self._ready:
            deltas, self._ready = self._ready, []
            for delta in deltas:
                self._num_completion_tokens += delta.num_tokens
                if self._num_reasoning_tokens is not None:
                    self._num_reasoning_tokens += delta.num_reasoning_tokens
                self._observer.on_delta(delta)
            return deltas
        if self._failure is not None:
            raise self._failure
        if self._open:
            return []
        await self._goodbyes()
        return None

    def _collect(self) -> None:
        """A failure is raised after what came before it was delivered."""
        try:
            for entry in tuple(self._open):
                run, stream = entry
                for event in stream.take_now():
                    self._ready.extend(run.take(event))
                if run.stopped:
                    stream.cancel(tuple(run.stopped))
                    run.stopped.clear()
                if stream.complete and not run.finished:
                    # Raises why, if it failed.
                    stream.take_now()
                if run.finished or stream.complete:
                    self._open.remove(entry)
                    self._ready.extend(run.end())
        except InvalidRequest as error:
            self._failure = error.for_caller(self._grammar_field) if error.param == "grammar" else error
        except Exception as error:
            self._failure = error

    async def _goodbyes(self) -> None:
        """Reads to the end of the streams, so that leaving them cancels nothing. The end of a choice at the engine also
        tells how much of its prompt was cached."""
        with suppress(TimeoutError, PageloomError):
            async with asyncio.timeout(GOODBYE_S):
                while True:
                    for run, stream in self._started():
                        for event in stream.take_now():
                            list(run.take(event))
                    if all(stream.complete for stream in self._streams):
                        return
                    await self._wakeup.wait()

    def _started(self) -> Iterator[tuple[PromptRun, EngineStream]]:
        # All prompts of a job are asked for, or none is.
        return zip(self._runs, self._streams, strict=False)

    def _leave(self) -> None:
        for stream in self._streams:
            stream.leave()
        self._streams.clear()
