"""One request's events between who receives them and who reads them; joins those a slow reader has not taken."""

from __future__ import annotations

from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, GenerateEvent, PromptLogprobs, TokenLogprobs, TokensGenerated
from pageloom.wakeup import Wakeup

# What has so many is not added to. With the most log-probabilities that may be asked for, an event that got its tokens
# one by one stays below a quarter of the message limit.
MAX_TOKENS_PER_EVENT = 16_384


class EventBuffer:
    """Holds the events of one request, of which one ChoiceFinished for each choice is the last. One task reads.

    Tokens that pile up are joined by choice, so what waits here is bounded by the request's own prompt and
    max_tokens, however slowly it is read. One that reads several buffers gives them the same `wakeup`.
    """

    __slots__ = (
        "_failure",
        "_finished",
        "_joined",
        "_newest",
        "_num_unfinished",
        "_prompt_logprobs",
        "_tokens",
        "_wakeup",
    )

    def __init__(self, num_choices: int, wakeup: Wakeup | None = None) -> None:
        self._num_unfinished = num_choices
        self._prompt_logprobs: list[PromptLogprobs] = []
        self._tokens: list[TokensGenerated] = []
        self._newest: dict[int, int] = {}  # of each choice, where in _tokens its newest are
        # Of those in _tokens that were added to: all of it so far.
        self._joined: dict[int, tuple[list[int], list[TokenLogprobs]]] = {}
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
        self, choice_index: int, first_index: int, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        newest = self._newest.get(choice_index)
        if newest is None:
            if len(token_ids) < MAX_TOKENS_PER_EVENT:
                self._newest[choice_index] = len(self._tokens)
            self._tokens.append(TokensGenerated(choice_index, first_index, token_ids, logprobs))
        else:
            self._join(newest, token_ids, logprobs)
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
        if not (self._tokens or self._finished or self._prompt_logprobs):
            if self._failure is not None:
                raise self._failure
            return []
        tokens, self._tokens = self._tokens, []
        self._newest.clear()
        if self._joined:
            for index, (token_ids, logprobs) in self._joined.items():
                tokens[index] = tokens[index]._replace(token_ids=tuple(token_ids), logprobs=tuple(logprobs))
            self._joined.clear()
        if not (self._finished or self._prompt_logprobs):
            return list[GenerateEvent](tokens)
        prompt_logprobs, finished = self._prompt_logprobs, self._finished
        self._prompt_logprobs, self._finished = [], []
        return [*prompt_logprobs, *tokens, *finished]

    def _join(self, index: int, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        # Lists, for tuples that grow by a token at a time would be copied for each.
        joined = self._joined.get(index)
        if joined is None:
            earlier = self._tokens[index]
            joined = self._joined[index] = list(earlier.token_ids), list(earlier.logprobs)
        joined[0].extend(token_ids)
        joined[1].extend(logprobs)
        if len(joined[0]) >= MAX_TOKENS_PER_EVENT:
            # What comes next is an event of its own.
            del self._newest[self._tokens[index].choice_index]
