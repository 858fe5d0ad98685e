"""Which tokens has a slot seen, and how often? Kept up to date token by token, for slots with penalties only."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom.plan import Admission
from worker_svc.draw_rows import DrawRows
from worker_svc.sampling_table import SamplingTable


class PenaltyState:
    """Token counts on the model's device: `output_counts` [max_num_seqs, vocab] int32 and `seen`
    [max_num_seqs, vocab] bool (in prompt or output). Both exist from the first penalised slot on."""

    def __init__(self, table: SamplingTable, *, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._table = table
        self._shape = (max_num_seqs, vocab_size)
        self._device = device
        self._output_counts: Tensor | None = None
        self._seen: Tensor | None = None

    def bind(self, admission: Admission) -> None:
        """Counts the tokens of a newly bound slot; the sampling table must have it already."""
        slot = admission.slot
        if not self._table.penalised(np.array([slot]))[0]:
            return
        output_counts, seen = self._tensors()
        tokens = torch.tensor(admission.token_ids, device=self._device)
        output = tokens[admission.num_prompt_tokens :]
        seen[slot].zero_().index_fill_(0, tokens, True)
        output_counts[slot].zero_().index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def apply(self, logits: Tensor, draws: DrawRows) -> None:
        """Edits `logits` [rows, vocab] in place. Drafts before a row count as if they had been drawn.

        The repetition penalty is that of CTRL (Keskar et al., 2019): divide positive and multiply
        negative logits. The other two are OpenAI's.
        """
        slots = draws.row_slots
        rows = np.flatnonzero(self._table.penalised(slots))
        if rows.size == 0:
            return
        output_counts, seen = self._tensors()
        row_index, slot_index = self._index(rows), self._index(slots[rows])
        counts, known = output_counts[slot_index], seen[slot_index]  # copies [penalised, vocab]
        if len(draws.draft_token_ids):
            self._count(counts, known, *draws.drafts_before(rows))
        picked = logits[row_index]  # [penalised, vocab]
        factor = self._column(self._table.repetition_penalty, slots[rows])
        picked = torch.where(known, torch.where(picked > 0, picked / factor, picked * factor), picked)
        picked -= self._column(self._table.frequency_penalty, slots[rows]) * counts
        picked -= self._column(self._table.presence_penalty, slots[rows]) * (counts > 0)
        logits[row_index] = picked

    def record(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Counts the tokens that `slots` drew."""
        kept = np.flatnonzero(self._table.penalised(slots))
        if kept.size > 0:
            self._count(*self._tensors(), slots[kept], token_ids[kept])

    def _count(self, counts: Tensor, seen: Tensor, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Adds tokens to rows of `counts` and `seen`; a row may have several, and one more than once."""
        index = self._index(rows), self._index(token_ids)
        counts.index_put_(index, torch.ones((), dtype=torch.int32, device=self._device), accumulate=True)
        seen[index] = True

    def _tensors(self) -> tuple[Tensor, Tensor]:
        if self._output_counts is None or self._seen is None:
            # Left uninitialised: a row is cleared when its slot is bound, and host pages stay
            # unmapped until then.
            self._output_counts = torch.empty(self._shape, dtype=torch.int32, device=self._device)
            self._seen = torch.empty(self._shape, dtype=torch.bool, device=self._device)
        return self._output_counts, self._seen

    def _index(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _column(self, values: NDArray[np.float32], slots: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values[slots]).to(self._device, non_blocking=True)[:, None]
