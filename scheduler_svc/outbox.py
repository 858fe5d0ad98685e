"""Where do a request's events go? What the driver calls, and its form for a call of its own."""

from __future__ import annotations

from typing import Protocol

from pageloom.event_buffer import EventBuffer
from pageloom.outputs import ChoiceFinished, PromptLogprobs, TokenLogprobs


class Reader(Protocol):
    """Takes one request's events: its prompt's log-probabilities if they were asked for, then each choice's tokens in
    order, then its ChoiceFinished.

    Called on the event loop, by the driver, once for each running choice in each step: it must be quick, and
    must not raise.
    """

    def put_prompt_logprobs(self, logprobs: PromptLogprobs) -> None: ...

    def put_token(self, choice_index: int, first_index: int, token_id: int, logprobs: TokenLogprobs | None) -> None: ...

    def put_finished(self, event: ChoiceFinished) -> None: ...


class Outbox(EventBuffer):
    """The Reader behind a Generate call, which takes from it."""

    __slots__ = ()

    def put_token(self, choice_index: int, first_index: int, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self.put_tokens(choice_index, first_index, (token_id,), () if logprobs is None else (logprobs,))
