"""One request's events between who receives them and who reads them; joins those a slow reader has not taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, GenerateEvent, PromptLogprobs, TokenLogprobs, TokensGenerated
from pageloom.wakeup import Wakeup

# What has so many is not added to. With the most log-probabilities that may be asked for, an event that got its tokens
# one by one stays below a quarter of the message limit.
MAX_TOKENS_PER_EVENT = 16_384


class _Waiting(NamedTuple):
    """Tokens of one choice that nobody has taken yet."""

    choice_index: int
    first_index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs]


class EventBuffer:
    """Holds the events of one request, of which one ChoiceFinished for each choice is the last. One task reads.

    Tokens that pile up are joined by choice, so what waits here is bounded by the request's own prompt and
    max_tokens, however slowly it is read. One that reads several buffers gives them the same `wakeup`.
    """

    __slots__ = ("_failure", "_finished", "_newest", "_num_unfinished", "_prompt_logprobs", "_waiting", "_wakeup")

    def __init__(self, num_choices: int, wakeup: Wakeup | None = None) -> None:
        self._num_unfinished = num_choices
        self._prompt_logprobs: list[PromptLogprobs] = []
        self._waiting: list[_Waiting] = []
        self._newest: dict[int, _Waiting] = {}  # of each choice
        self._finished: list[ChoiceFinished] = []
        self._failure: PageloomError | None = None
        self._wakeup = wakeup or Wakeup()

    @property
    def complete(self) -> bool:
        """Nothing more will arrive."""
        return self._failure is not None or not self._num_unfinished

    def put_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        self._prompt_logprobs.append(logprobs)
        self._wakeup.wake()

    def put_tokens(
        self, choice_index: int, first_index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> None:
        waiting = self._newest.get(choice_index)
        if waiting is None or len(waiting.token_ids) >= MAX_TOKENS_PER_EVENT:
            waiting = self._newest[choice_index] = _Waiting(choice_index, first_index, [], [])
            self._waiting.append(waiting)
        waiting.token_ids.extend(token_ids)
        waiting.logprobs.extend(logprobs)
        self._wakeup.wake()

    def put_finished(self, event: ChoiceFinished) -> None:
        self._finished.append(event)
        self._num_unfinished -= 1
        self._wakeup.wake()

    def fail(self, error: PageloomError) -> None:
        """The reader gets what is here, and then the error. Means nothing once everything has arrived."""
        if not self.complete:
            self._failure = error
            self._wakeup.wake()

    async def take(self) -> list[GenerateEvent]:
        """What has arrived since the last call, waiting for at least one event; nothing once all choices have ended.

        Cancellation loses nothing. Raises what `fail` was given.
        """
        while not (events := self.take_now()) and self._num_unfinished:
            await self._wakeup.wait()
        return events

    def take_now(self) -> list[GenerateEvent]:
        """As `take`, but nothing if nothing has arrived."""
        if not (self._waiting or self._finished or self._prompt_logprobs):
            if self._failure is not None:
                raise self._failure
            return []
        prompt_logprobs, waiting, finished = self._prompt_logprobs, self._waiting, self._finished
        self._prompt_logprobs, self._waiting, self._newest, self._finished = [], [], {}, []
        tokens = [
            TokensGenerated(
                choice_index=choice_index,
                first_index=first_index,
                token_ids=tuple(token_ids),
                logprobs=tuple(logprobs),
            )
            for choice_index, first_index, token_ids, logprobs in waiting
        ]
        return [*prompt_logprobs, *tokens, *finished]
