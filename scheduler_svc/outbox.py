"""Carries one request's events from the driver to its RPC, and joins those a slow reader has not taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pageloom.outputs import ChoiceFinished, GenerateEvent, TokensGenerated


class Outbox:
    """Events of one request in order of arrival, ended by one ChoiceFinished for each choice.

    Tokens that pile up are joined into one event for each choice, so what waits here is bounded by
    the request's own max_tokens, however slowly it is read.
    """

    def __init__(self, num_choices: int) -> None:
        self._num_open = num_choices
        self._tokens: dict[int, TokensGenerated] = {}
        self._finished: list[ChoiceFinished] = []
        self._arrived = asyncio.Event()

    def put(self, event: GenerateEvent) -> None:
        if isinstance(event, ChoiceFinished):
            self._finished.append(event)
        else:
            waiting = self._tokens.get(event.choice_index)
            self._tokens[event.choice_index] = event if waiting is None else _join(waiting, event)
        self._arrived.set()

    async def events(self) -> AsyncIterator[GenerateEvent]:
        """Ends after the last choice's ChoiceFinished."""
        while self._num_open:
            await self._arrived.wait()
            self._arrived.clear()
            # Taken before the first yield: what arrives while the reader holds an event comes next round.
            tokens, self._tokens = self._tokens, {}
            finished, self._finished = self._finished, []
            for event in tokens.values():
                yield event
            for last in finished:
                self._num_open -= 1
                yield last


def _join(earlier: TokensGenerated, later: TokensGenerated) -> TokensGenerated:
    return TokensGenerated(
        choice_index=earlier.choice_index,
        first_index=earlier.first_index,
        token_ids=earlier.token_ids + later.token_ids,
        logprobs=earlier.logprobs + later.logprobs,
    )
