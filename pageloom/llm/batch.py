"""Many prompts at once: all of them at the engine, as far as its queue is meant to hold, and their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pageloom.client import EngineClient
from pageloom.engine_session import EngineStream
from pageloom.errors import EngineError, Overloaded
from pageloom.llm.answer import Answer, Question
from pageloom.llm.outputs import RequestOutput
from pageloom.wakeup import Wakeup

# Sequences at the engine: half of what its queue takes by default, and far more than one step has room for.
MAX_NUM_SEQS = 512
_RETRY_S = 0.1


class Batch:
    """One task reads all streams. It is woken once for each step of the engine, whatever the number of sequences, and
    looks only at what has ended or may have to be ended: tokens of the others are left to pile up in their buffers."""

    def __init__(
        self,
        client: EngineClient,
        questions: Sequence[Question],
        answers: Sequence[Answer],
        on_answer: Callable[[RequestOutput], object],
    ) -> None:
        self._client = client
        self._waiting = deque(zip(questions, answers, strict=True))
        self._open: dict[EngineStream, tuple[Question, Answer]] = {}
        self._num_seqs = 0
        self._max_num_seqs = MAX_NUM_SEQS
        self._on_answer = on_answer
        self._wakeup = Wakeup()

    async def run(self) -> None:
        """Returns when all answers are complete. Raises what the engine's calls raise, and then cancels the others."""
        try:
            while self._waiting or self._open:
                self._start_some()
                await self._wakeup.wait()
                if not self._collect() and not self._open:
                    # The queue is full of what others have sent.
                    await asyncio.sleep(_RETRY_S)
                    self._wakeup.wake()
        finally:
            for stream in self._open:
                stream.leave()

    def _start_some(self) -> None:
        while self._waiting:
            question, answer = self._waiting[0]
            if self._open and self._num_seqs + question.params.n > self._max_num_seqs:
                return
            self._waiting.popleft()
            self._open[self._client.start(question.request, self._wakeup)] = question, answer
            self._num_seqs += question.params.n

    def _collect(self) -> bool:
        """Whether something was taken."""
        some = False
        for stream, (question, answer) in list(self._open.items()):
            if not (stream.complete or question.params.stop):
                continue
            try:
                answer.take(stream.take_now())
            except Overloaded:
                self._close(stream, question)
                self._waiting.appendleft((question, answer))
                # The queue is shorter, or others use it.
                self._max_num_seqs = self._num_seqs
                continue
            some = True
            if stream.complete:
                self._close(stream, question)
                self._on_answer(_required(answer))
            elif answer.stopped:
                stream.cancel(tuple(answer.stopped))
                answer.stopped.clear()
        return some

    def _close(self, stream: EngineStream, question: Question) -> None:
        del self._open[stream]
        stream.leave()
        self._num_seqs -= question.params.n


def _required(answer: Answer) -> RequestOutput:
    if not answer.finished:
        raise EngineError("the engine ended the stream too early")
    return answer.output()
