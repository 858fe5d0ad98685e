"""Guesses what a smaller model finds likeliest: one of its own, or the first layers of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom.plan import Admission
from pageloom_kernels import AttentionBatch
from worker_svc.batch_inputs import Rows, attention_batch
from worker_svc.drafting.draft_coverage import DraftCoverage
from worker_svc.drafting.draft_steps import flat, guess_on
from worker_svc.drafting.drafter import DraftRequests, Drafts, TargetStep
from worker_svc.models.model import Model
from worker_svc.rehearsal import rehearse
from worker_svc.slots import SlotTable

# Known tokens that a slot may lack and be guessed for in the same step. A prompt takes as long as many guesses do, and
# would seem to be the price of one.
_MOST_LACKING = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Proposal:
    """What was guessed for a step: [seqs] slots and their known tokens then, [seqs, most drafts] guesses."""

    slots: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    guesses: NDArray[np.int64]


class ModelDrafter:
    """A `Drafter` that runs `model` on the blocks of the sequences, in tensors of its own (`kv_caches`) behind the same
    block ids: it computes what it lacks of the known tokens, in steps of at most `max_num_batched_tokens`, and then one
    guess after the other.

    Without `coverage` its layers are the first ones of the model that verifies, and `kv_caches` are that model's: their
    keys and values are the same, so that nothing but the last known token is ever lacking.
    """

    tap_layers = ()

    def __init__(
        self,
        model: Model,
        kv_caches: Sequence[Tensor],
        coverage: DraftCoverage | None,
        *,
        max_num_batched_tokens: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._coverage = coverage
        self._max_num_batched_tokens = max_num_batched_tokens
        self._device = device
        # Of the steps that are not over: several, of different slots, if the model has several stages.
        self._proposals: list[_Proposal] = []

    def warm_up(self, num_tokens: int) -> None:
        for count in (1, num_tokens):
            self._model.most_likely(rehearse(self._model, self._kv_caches, count, 1, self._device))

    def bind(self, admission: Admission) -> None:
        if self._coverage is not None:
            self._coverage.bind(admission)

    def release(self, slots: tuple[int, ...]) -> None:
        pass

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        num_tokens = table.num_tokens[requests.slots]
        first = self._first_guesses(requests.slots, table)
        guesses = guess_on(first, requests, num_tokens, table, self._device, self._next_tokens)
        if self._coverage is not None:
            self._proposals.append(_Proposal(slots=requests.slots, num_tokens=num_tokens, guesses=guesses))
        return flat(guesses)

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        if self._coverage is None:
            return
        unfinished = []
        for proposal in self._proposals:
            if np.isin(proposal.slots, step.runs.slots).any():
                _keep_right_guesses(proposal, self._coverage, table)
            else:
                unfinished.append(proposal)
        self._proposals = unfinished
        self._coverage.written(step.runs, table)

    def _first_guesses(self, slots: NDArray[np.int64], table: SlotTable) -> NDArray[np.int64]:
        """[slots] after all known tokens, which are computed now; -1 for those that lacked many."""
        known = table.num_tokens[slots]
        starts = known - 1 if self._coverage is None else self._coverage.starts(slots, table)
        lens = _share_budget(known - starts, self._max_num_batched_tokens)
        # Attention wants those with one token first.
        runs = np.argsort(lens > 1, kind="stable")
        runs = runs[lens[runs] > 0]
        rows = Rows.of(slots[runs], starts[runs], lens[runs])
        batch = attention_batch(table, slots[runs], lens[runs], rows, self._device)
        completed = ((starts + lens == known) & (lens <= _MOST_LACKING))[runs]
        output_rows = (rows.query_start[1:] - 1)[completed]
        token_ids = self._upload(table.token_ids[rows.slots, rows.positions].astype(np.int64))
        hidden = self._model.forward(token_ids, batch, self._kv_caches, self._upload(output_rows))
        if self._coverage is not None:
            self._coverage.computed(slots, starts, lens, table)
        first = np.full(len(slots), -1, np.int64)
        if output_rows.size:
            first[runs[completed]] = self._model.most_likely(hidden).cpu().numpy()
        return first

    def _next_tokens(self, token_ids: Tensor, batch: AttentionBatch, _kept: Tensor) -> Tensor:
        output_rows = torch.arange(len(token_ids), device=self._device)
        hidden = self._model.forward(token_ids, batch, self._kv_caches, output_rows)
        return self._model.most_likely(hidden)

    def _upload(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _share_budget(wanted: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """[seqs] as much of `wanted` as fits in the budget: all of the smallest, and a part of one."""
    order = np.argsort(wanted, kind="stable")
    before = np.cumsum(wanted[order]) - wanted[order]
    granted = np.empty_like(wanted)
    granted[order] = np.clip(budget - before, 0, wanted[order])
    return granted


def _keep_right_guesses(proposal: _Proposal, coverage: DraftCoverage, table: SlotTable) -> None:
    """Guesses that turned out right, all but the last one of a sequence, were computed for good."""
    guesses = proposal.guesses[:, :-1]
    positions = proposal.num_tokens[:, None] + np.arange(guesses.shape[1])
    slots = proposal.slots[:, None]
    # The last guess of a sequence is followed by -1.
    computed = (proposal.guesses[:, 1:] >= 0) & (positions < table.num_tokens[slots])
    right = computed & (table.token_ids[slots, positions.clip(max=table.token_ids.shape[1] - 1)] == guesses)
    num_right = np.cumprod(right, axis=1).sum(axis=1)
    completed = proposal.guesses[:, 0] >= 0
    coverage.extend(proposal.slots[completed], (proposal.num_tokens + num_right)[completed])
