"""Which rows of a step give log-probabilities of prompt tokens, and which tokens are those?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission
from worker_svc.slots import Runs, SlotTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptRows:
    """The rows of a step after which a prompt token is scored: those of one slot follow each other, slot by slot."""

    slots: NDArray[np.int64]  # [scored slots]
    first_indexes: NDArray[np.int64]  # [scored slots]: of the first token in its prompt
    lens: NDArray[np.int64]  # [scored slots]
    num_tops: NDArray[np.int64]  # [scored slots]: how many of the likeliest tokens are asked for
    rows: NDArray[np.int64]  # [rows]: among all tokens of the step
    token_ids: NDArray[np.int64]  # [rows]: the tokens to score

    def parts(self) -> Iterator[tuple[int, int, int, slice]]:
        """Slot, index of its first token, number of the likeliest, and its part of the rows."""
        ends = np.cumsum(self.lens)
        columns = (self.slots, self.first_indexes, self.num_tops, ends - self.lens, ends)
        for slot, first_index, num_top, start, end in zip(*(column.tolist() for column in columns), strict=True):
            yield slot, first_index, num_top, slice(start, end)


class PromptScoring:
    """What the slots want of their prompts: columns over all of them, written when a slot is bound."""

    def __init__(self, max_num_seqs: int) -> None:
        # Index of the first prompt token to score; 0: none.
        self._first = np.zeros(max_num_seqs, np.int64)
        self._num_tops = np.zeros(max_num_seqs, np.int64)

    def bind(self, admission: Admission) -> None:
        """Takes over what a newly bound slot wants."""
        self._first[admission.slot] = admission.first_scored_token
        self._num_tops[admission.slot] = admission.sampling.prompt_logprobs or 0

    def rows(self, runs: Runs, table: SlotTable) -> PromptRows | None:
        """Those of a step, before `table` advances; None if there are none, which costs next to nothing."""
        first = self._first[runs.slots]
        if not first.any():
            return None
        # The token at a position is scored by the row of the one before it.
        begins = np.maximum(runs.starts, first - 1)
        ends = np.minimum(runs.starts + runs.lens, table.num_prompt_tokens[runs.slots] - 1)
        which = np.flatnonzero((first > 0) & (begins < ends))
        if which.size == 0:
            return None
        slots, lens = runs.slots[which], (ends - begins)[which]
        within = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
        positions = np.repeat(begins[which], lens) + within
        row_starts = np.cumsum(runs.lens) - runs.lens
        return PromptRows(
            slots=slots,
            first_indexes=begins[which] + 1,
            lens=lens,
            num_tops=self._num_tops[slots],
            rows=np.repeat((row_starts - runs.starts)[which], lens) + positions,
            token_ids=table.token_ids[np.repeat(slots, lens), positions + 1].astype(np.int64),
        )
