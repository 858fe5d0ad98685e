"""What does the worker ask of whatever guesses tokens, be it a table or a model?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pageloom.plan import Admission
from worker_svc.batch_inputs import BatchInputs
from worker_svc.slots import Runs, SlotTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftRequests:
    """Who may have tokens guessed in the step at hand, and how many at most."""

    slots: NDArray[np.int64]  # [seqs], ascending
    limits: NDArray[np.int64]  # [seqs], at least 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafts:
    """Guessed tokens, those of one slot after the other: the first `lens[0]` are to follow the last known token of
    the first requested slot, in order. A slot about which nothing is known has a length of 0, and costs nothing."""

    lens: NDArray[np.int64]  # [seqs], parallel to DraftRequests.slots; 0 to its limit
    token_ids: NDArray[np.int64]  # [sum of lens], each inside the model's vocabulary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetStep:
    """A step that the model has run. A run of `lens` tokens has verified drafts in its last `num_drafts` rows; how many
    of them were right is to be seen from the slot's number of tokens."""

    runs: Runs
    inputs: BatchInputs
    # [tokens, tap layers * hidden]: what went into the layers that the drafter asks for; None if it asks for none.
    tapped: Tensor | None


class Drafter(Protocol):
    """Guesses how outputs go on. One thread calls, in this order for each step: `release`, `bind`, `propose` if anyone
    may have drafts, `observe`.

    A wrong guess costs time and nothing else: each row's token is drawn from the model alone, with the random number
    that belongs to its position, and a draft is accepted if it is that token. So guesses carry no probabilities, and
    one may be made from whatever is at hand, even the numbers that the draw will use (`counter_random.uniforms`).
    """

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The model's layers whose inputs `observe` wants to see."""

    def warm_up(self, num_tokens: int) -> None:
        """Once, before the first step: runs what it has on one token and on `num_tokens`, and writes no block."""

    def bind(self, admission: Admission) -> None:
        """A slot is bound to another sequence, whose known tokens are in the admission."""

    def release(self, slots: tuple[int, ...]) -> None:
        """What is kept for these slots may be forgotten; whoever is bound next takes it over anyway."""

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        """Guesses what comes after the tokens that `table` has of each slot: `token_ids[slot, :num_tokens[slot]]`, of
        which all but the last are computed. The blocks of a slot have room for as many more as its limit."""

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        """The model has run `step`, prompts' chunks too, and `table` has the tokens that it drew."""
