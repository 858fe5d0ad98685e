"""Many prompts at once: all of them at the engine, as far as its queue is meant to hold, and their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pageloom.client import EngineClient
from pageloom.engine_session import EngineStream
from pageloom.errors import EngineError, InvalidRequest, Overloaded
from pageloom.llm.answer import Answer, Question
from pageloom.llm.outputs import RequestOutput
from pageloom.tokenizer import Tokenizer
from pageloom.wakeup import Wakeup

# Sequences at the engine: half of what its queue takes by default, and far more than one step has room for.
MAX_NUM_SEQS = 512
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class _Entry:
    index: int
    question: Question
    answer: Answer


class Batch:
    """One task reads all streams. It is woken once for each step of the engine, whatever the number of sequences, and
    looks only at what has ended or may have to be ended: tokens of the others are left to pile up in their buffers."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        questions: Sequence[Question],
        on_output: Callable[[RequestOutput], object],
    ) -> None:
        self._client = client
        self._waiting = deque(
            _Entry(index, question, Answer(question, tokenizer)) for index, question in enumerate(questions)
        )
        self._open: dict[EngineStream, _Entry] = {}
        self._outputs: dict[int, RequestOutput] = {}
        self._num_seqs = 0
        self._max_num_seqs = MAX_NUM_SEQS
        self._on_output = on_output
        self._wakeup = Wakeup()

    async def run(self) -> list[RequestOutput]:
        """The answers, in the order of the questions. Raises what the engine's calls raise, and then cancels the
        others."""
        try:
            while self._waiting or self._open:
                self._start_some()
                await self._wakeup.wait()
                if self._collect() and not self._open:
                    # The queue is full of what others have sent.
                    await asyncio.sleep(_RETRY_S)
        finally:
            for stream in self._open:
                stream.leave()
        return [self._outputs[index] for index in range(len(self._outputs))]

    def _start_some(self) -> None:
        while self._waiting:
            entry = self._waiting[0]
            if self._open and self._num_seqs + entry.question.params.n > self._max_num_seqs:
                return
            self._waiting.popleft()
            self._open[self._client.start(entry.question.request, self._wakeup)] = entry
            self._num_seqs += entry.question.params.n

    def _collect(self) -> bool:
        """Whether the engine had no room for some."""
        refused = False
        for stream, entry in list(self._open.items()):
            if not (stream.complete or entry.question.params.stop):
                continue
            try:
                entry.answer.take(stream.take_now())
            except Overloaded:
                self._close(stream, entry)
                self._waiting.appendleft(entry)
                # The queue is shorter, or others use it.
                self._max_num_seqs = self._num_seqs
                refused = True
                continue
            except InvalidRequest as error:
                raise entry.question.naming_argument(error) from None
            if stream.complete:
                self._close(stream, entry)
                self._finish(entry)
            elif entry.answer.stopped:
                stream.cancel(tuple(entry.answer.stopped))
                entry.answer.stopped.clear()
        return refused

    def _close(self, stream: EngineStream, entry: _Entry) -> None:
        del self._open[stream]
        stream.leave()
        self._num_seqs -= entry.question.params.n

    def _finish(self, entry: _Entry) -> None:
        if not entry.answer.finished:
            raise EngineError("the engine ended the stream too early")
        output = self._outputs[entry.index] = entry.answer.output()
        self._on_output(output)
