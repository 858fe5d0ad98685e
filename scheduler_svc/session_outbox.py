"""What does a session have to tell its client? Gathers the events of all its requests into messages of columns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pageloom import wire
from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, PromptLogprobs, TokenLogprobs
from pageloom.rpc.v1 import engine_pb2
from pageloom.wakeup import Wakeup

# Of one message. With the most log-probabilities that may be asked for it stays below half of the message limit.
MAX_TOKENS_PER_MESSAGE = 32_768
# Likewise, of prompts; what one step brings for one request is not taken apart.
MAX_SCORED_TOKENS_PER_MESSAGE = 32_768
# A timeline takes up to 96 KB and an embedding 64, and all of them have to fit.
MAX_ENDS_PER_MESSAGE = 64
# A client that sends and never reads would else make us keep the ends of ever more requests.
MAX_WAITING_ENDS = 1_024


class _Pile:
    """Tokens of one choice that no message has taken yet; a TokensOfStream."""

    __slots__ = ("choice_index", "first_index", "logprobs", "stream_id", "token_ids")

    def __init__(self, stream_id: int, choice_index: int) -> None:
        self.stream_id = stream_id
        self.choice_index = choice_index
        self.first_index = 0
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []

    def split(self, num_tokens: int) -> _Pile:
        """Takes the first tokens away, as a pile of their own."""
        first = _Pile(self.stream_id, self.choice_index)
        first.first_index = self.first_index
        first.token_ids, self.token_ids = self.token_ids[:num_tokens], self.token_ids[num_tokens:]
        first.logprobs, self.logprobs = self.logprobs[:num_tokens], self.logprobs[num_tokens:]
        self.first_index += num_tokens
        return first


class SessionOutbox:
    """Collects until a message is taken. Tokens of one choice that pile up are joined, so what waits is bounded
    by the max_tokens and prompts of the session's requests, and by `room` for those that have ended.

    A step's tokens arrive between two turns of the event loop: the first wakes the one that writes, which
    then finds all of them.
    """

    def __init__(self) -> None:
        # Those that hold tokens, in the order in which they got their first. Streams append to this very list.
        self.ready: list[_Pile] = []
        self._prompt_logprobs: deque[wire.StreamPromptLogprobs] = deque()
        self._finished: list[wire.StreamFinished] = []
        self._refused: list[wire.StreamRefused] = []
        self._arrived = Wakeup()
        self._taken = asyncio.Event()

    def stream(self, stream_id: int, num_choices: int, on_end: Callable[[], object]) -> StreamOutbox:
        """The Reader of one request. `on_end` is called once its last choice has ended."""
        return StreamOutbox(self, stream_id, num_choices, on_end)

    def score_prompt(self, stream_id: int, logprobs: PromptLogprobs) -> None:
        self._prompt_logprobs.append(wire.StreamPromptLogprobs(stream_id, logprobs))
        self._arrived.wake()

    def finish(self, stream_id: int, event: ChoiceFinished) -> None:
        self._finished.append(wire.StreamFinished(stream_id, event))
        self._arrived.wake()

    def refuse(self, stream_id: int, error: PageloomError) -> None:
        self._refused.append(wire.StreamRefused(stream_id, error))
        self._arrived.wake()

    def wake(self) -> None:
        """Makes `arrival` return."""
        self._arrived.wake()

    async def arrival(self) -> None:
        """Returns once there may be something to write."""
        await self._arrived.wait()

    async def room(self) -> None:
        """Returns once few enough ends wait to let the client begin more."""
        while len(self._finished) + len(self._refused) >= MAX_WAITING_ENDS:
            self._taken.clear()
            await self._taken.wait()

    def next_message(self) -> engine_pb2.SessionResponse | None:
        """Takes what fits one message; None if nothing waits."""
        if not (self.ready or self._finished or self._refused or self._prompt_logprobs):
            return None
        prompt_logprobs = self._take_prompt_logprobs()
        if self._prompt_logprobs:
            # No token may overtake them.
            return wire.session_response_to_proto((), prompt_logprobs=prompt_logprobs)
        piles = self._take_piles()
        finished: list[wire.StreamFinished] = []
        refused: list[wire.StreamRefused] = []
        # The end of a choice must not overtake its tokens.
        if not self.ready:
            finished, self._finished = self._finished[:MAX_ENDS_PER_MESSAGE], self._finished[MAX_ENDS_PER_MESSAGE:]
            refused, self._refused = self._refused[:MAX_ENDS_PER_MESSAGE], self._refused[MAX_ENDS_PER_MESSAGE:]
            self._taken.set()
        message = wire.session_response_to_proto(piles, finished, refused, prompt_logprobs)
        for pile in piles:
            # The message holds a copy; the next token makes the pile ready again.
            pile.token_ids.clear()
            pile.logprobs.clear()
        return message

    def _take_prompt_logprobs(self) -> list[wire.StreamPromptLogprobs]:
        taken: list[wire.StreamPromptLogprobs] = []
        room = MAX_SCORED_TOKENS_PER_MESSAGE
        while self._prompt_logprobs and (not taken or len(self._prompt_logprobs[0].logprobs.logprobs) <= room):
            taken.append(self._prompt_logprobs.popleft())
            room -= len(taken[-1].logprobs.logprobs)
        return taken

    def _take_piles(self) -> list[_Pile]:
        taken = self.ready[:MAX_TOKENS_PER_MESSAGE]
        if sum([len(pile.token_ids) for pile in taken]) <= MAX_TOKENS_PER_MESSAGE:
            del self.ready[: len(taken)]
            return taken
        room = MAX_TOKENS_PER_MESSAGE
        num_whole = 0
        while (num_tokens := len(taken[num_whole].token_ids)) <= room:
            room -= num_tokens
            num_whole += 1
        partly = taken[num_whole]
        del self.ready[:num_whole]
        return [*taken[:num_whole], partly.split(room)] if room else taken[:num_whole]


class StreamOutbox:
    """The Reader of one request of a session."""

    __slots__ = ("_num_unfinished", "_on_end", "_outbox", "_piles", "_ready", "_stream_id")

    def __init__(self, outbox: SessionOutbox, stream_id: int, num_choices: int, on_end: Callable[[], object]) -> None:
        self._outbox = outbox
        self._ready = outbox.ready
        self._stream_id = stream_id
        self._num_unfinished = num_choices
        self._on_end = on_end
        # Made when a choice has its first token: the number of choices is not checked before the request is.
        self._piles: dict[int, _Pile] = {}

    def put_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        self._outbox.score_prompt(self._stream_id, logprobs)

    def put_token(self, choice_index: int, first_index: int, token_id: int, logprobs: TokenLogprobs | None) -> None:
        try:
            pile = self._piles[choice_index]
        except KeyError:
            pile = self._piles[choice_index] = _Pile(self._stream_id, choice_index)
        token_ids = pile.token_ids
        if not token_ids:
            pile.first_index = first_index
            ready = self._ready
            if not ready:
                self._outbox.wake()
            ready.append(pile)
        token_ids.append(token_id)
        if logprobs is not None:
            pile.logprobs.append(logprobs)

    def put_finished(self, event: ChoiceFinished) -> None:
        self._outbox.finish(self._stream_id, event)
        self._num_unfinished -= 1
        if not self._num_unfinished:
            self._on_end()
