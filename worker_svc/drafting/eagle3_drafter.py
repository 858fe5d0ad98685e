"""Guesses with an EAGLE-3 head what the model says next, from the hidden states that the model has just had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom.plan import Admission
from pageloom_kernels import AttentionBatch
from worker_svc.batch_inputs import Rows
from worker_svc.drafting.draft_steps import flat, guess_on
from worker_svc.drafting.drafter import DraftRequests, Drafts, TargetStep
from worker_svc.models.eagle3 import Eagle3Head
from worker_svc.rehearsal import rehearsal_batch
from worker_svc.slots import SlotTable


class Eagle3Drafter:
    """A `Drafter` whose keys and values are in `kv_cache`, behind the block ids of the sequences. The head follows the
    model through every step, drafts or not: hidden states of earlier steps are gone.

    The keys and values of a block's last token come from the token after it too, which another sequence that finds the
    block in the prefix cache may not have. That makes guesses a little worse there, and nothing wrong.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embed: Callable[[Tensor], Tensor],
        kv_cache: Tensor,
        *,
        max_num_seqs: int,
        device: torch.device,
    ) -> None:
        self.tap_layers = head.config.tap_layers
        self._head = head
        self._embed = embed
        self._kv_cache = kv_cache
        self._device = device
        # Of each slot: the head's hidden state before the last known token, and how many tokens were known then.
        self._hidden = torch.zeros(max_num_seqs, head.config.layer.hidden_size, dtype=kv_cache.dtype, device=device)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)

    def warm_up(self, num_tokens: int) -> None:
        for count in (1, num_tokens):
            token_ids = torch.zeros(count, dtype=torch.int64, device=self._device)
            tapped = torch.zeros(count, self._head.fusion_size, dtype=self._hidden.dtype, device=self._device)
            batch = rehearsal_batch(count, self._kv_cache.shape[3], self._head.num_positions, self._device)
            hidden = self._head.forward(self._embed(token_ids), self._head.fuse(tapped), batch, self._kv_cache)
            self._head.most_likely(hidden)

    def bind(self, admission: Admission) -> None:
        self._num_tokens[admission.slot] = 0

    def release(self, slots: tuple[int, ...]) -> None:
        pass

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        slots = requests.slots
        hidden = self._hidden[self._upload(slots)]
        first = self._head.most_likely(hidden).cpu().numpy()
        # A slot whose last step was not seen has no hidden state.
        first = np.where(self._num_tokens[slots] == table.num_tokens[slots], first, -1)

        def next_tokens(token_ids: Tensor, batch: AttentionBatch, still: Tensor) -> Tensor:
            nonlocal hidden
            hidden = self._head.forward(self._embed(token_ids), hidden[still], batch, self._kv_cache)
            return self._head.most_likely(hidden)

        return flat(guess_on(first, requests, table.num_tokens[slots] - 1, table, self._device, next_tokens))

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        assert step.tapped is not None
        runs = step.runs
        rows = Rows.of(runs.slots, runs.starts, runs.lens)
        # Rows of wrong guesses have no next token: what is computed for them is written over.
        nexts = np.minimum(rows.positions + 1, table.num_tokens[rows.slots] - 1)
        token_ids = self._upload(table.token_ids[rows.slots, nexts].astype(np.int64))
        fused = self._head.fuse(step.tapped)
        hidden = self._head.forward(self._embed(token_ids), fused, step.inputs.attention, self._kv_cache)
        # The row of the token before the last known one; it is one of the run's if the run drew.
        num_tokens = table.num_tokens[runs.slots]
        offsets = num_tokens - 2 - runs.starts
        drew = runs.draws & (offsets >= 0) & (offsets < runs.lens)
        slots, last_rows = runs.slots[drew], (rows.query_start[:-1] + offsets)[drew]
        self._hidden[self._upload(slots)] = hidden[self._upload(last_rows)]
        self._num_tokens[slots] = num_tokens[drew]

    def _upload(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
