"""One request's events between who receives them and who reads them; joins those a slow reader has not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, GenerateEvent, TokenLogprobs, TokensGenerated

# Of one event. With the most log-probabilities that may be asked for it stays below a quarter of the message limit.
MAX_TOKENS_PER_EVENT = 16_384


class _Waiting(NamedTuple):
    """Tokens of one choice that nobody has taken yet."""

    first_index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs]


class EventBuffer:
    """Holds the events of one request, of which one ChoiceFinished for each choice is the last. One task reads.

    Tokens that pile up are joined by choice, so what waits here is bounded by the request's own max_tokens,
    however slowly it is read.
    """

    __slots__ = ("_arrived", "_failure", "_finished", "_num_unfinished", "_tokens")

    def __init__(self, num_choices: int) -> None:
        self._num_unfinished = num_choices
        self._tokens: dict[int, _Waiting] = {}
        self._finished: list[ChoiceFinished] = []
        self._failure: PageloomError | None = None
        self._arrived = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Nothing more will arrive."""
        return self._failure is not None or not self._num_unfinished

    def put_tokens(
        self, choice_index: int, first_index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> None:
        waiting = self._tokens.get(choice_index)
        if waiting is None:
            waiting = self._tokens[choice_index] = _Waiting(first_index, [], [])
        waiting.token_ids.extend(token_ids)
        waiting.logprobs.extend(logprobs)
        self._arrived.set()

    def put_finished(self, event: ChoiceFinished) -> None:
        self._finished.append(event)
        self._num_unfinished -= 1
        self._arrived.set()

    def fail(self, error: PageloomError) -> None:
        """The reader gets what is here, and then the error. Means nothing once everything has arrived."""
        if not self.complete:
            self._failure = error
            self._arrived.set()

    async def take(self) -> list[GenerateEvent]:
        """What has arrived since the last call, waiting for at least one event; nothing once all choices have ended.

        Cancellation loses nothing. Raises what `fail` was given.
        """
        while not self._tokens and not self._finished:
            if self._failure is not None:
                raise self._failure
            if not self._num_unfinished:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        events: list[GenerateEvent] = []
        for choice_index, waiting in self._tokens.items():
            events += _events(choice_index, waiting)
        events += self._finished
        self._tokens, self._finished = {}, []
        return events


def _events(choice_index: int, waiting: _Waiting) -> list[TokensGenerated]:
    return [
        TokensGenerated(
            choice_index=choice_index,
            first_index=waiting.first_index + start,
            token_ids=tuple(waiting.token_ids[start : start + MAX_TOKENS_PER_EVENT]),
            logprobs=tuple(waiting.logprobs[start : start + MAX_TOKENS_PER_EVENT]),
        )
        for start in range(0, len(waiting.token_ids), MAX_TOKENS_PER_EVENT)
    ]
