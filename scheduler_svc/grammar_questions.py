"""Which grammars has a worker been asked to compile, and who waits for the answer?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pageloom.errors import Overloaded
from pageloom.grammar_limits import MAX_GRAMMARS_PREPARING

# More than may be queued to run, by default. What they hold is the grammars' text.
_MAX_QUESTIONS = 1024


class GrammarQuestions:
    """Of one worker. Each grammar is asked about once at a time, and so many at once as the worker takes. `send` sends
    a question, a number and a grammar."""

    def __init__(self, send: Callable[[int, str], None]) -> None:
        self._send = send
        self._answers: dict[str, asyncio.Future[str]] = {}
        self._unsent: deque[str] = deque()
        self._sent: dict[int, str] = {}
        self._num_sent = 0

    def ask(self, grammar: str) -> asyncio.Future[str]:
        """What is wrong with a grammar, "" if nothing is or if the worker goes first. Others may wait for the same
        answer, so a waiter shields it. Raises Overloaded if there are too many questions."""
        answer = self._answers.get(grammar)
        if answer is None:
            if len(self._answers) >= _MAX_QUESTIONS:
                raise Overloaded("too many grammars are being compiled")
            answer = self._answers[grammar] = asyncio.get_running_loop().create_future()
            self._unsent.append(grammar)
            self._send_on()
        return answer

    def take(self, number: int, error: str) -> None:
        """An answer. Raises KeyError if it is to no open question."""
        self._answers.pop(self._sent.pop(number)).set_result(error)
        self._send_on()

    def end(self) -> None:
        """The worker is gone: whoever compiles these then, the questions are not open any more."""
        for answer in self._answers.values():
            answer.set_result("")
        self._answers.clear()
        self._unsent.clear()
        self._sent.clear()

    def _send_on(self) -> None:
        while self._unsent and len(self._sent) < MAX_GRAMMARS_PREPARING:
            self._num_sent += 1
            grammar = self._sent[self._num_sent] = self._unsent.popleft()
            self._send(self._num_sent, grammar)
