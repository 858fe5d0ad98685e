"""Guesses for each step before the model runs, and what is learned from it after."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission
from worker_svc.drafting.draft_lengths import DraftLengths
from worker_svc.drafting.drafter import Drafter, DraftRequests, Drafts, TargetStep
from worker_svc.drafting.step_costs import StepCosts
from worker_svc.sampler import Draws, Sampler
from worker_svc.slots import Runs, SlotTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """What the scheduler is told of a step: how many drafts were run, how many the worker finds worth allowing for each
    slot, if it says, and what as many tokens would have taken without, as a multiple of what the step took."""

    num_drafts: int
    limit: int | None
    undrafted_part: float


NO_DRAFTS_RUN = DraftReport(num_drafts=0, limit=None, undrafted_part=0.0)


class Speculation:
    """One drafter, and how much of what it guesses is run. Nothing is decided here about what is drawn."""

    def __init__(self, drafter: Drafter, costs: StepCosts, *, max_num_seqs: int, max_num_draft_tokens: int) -> None:
        self.tap_layers = drafter.tap_layers
        self._drafter = drafter
        self._lengths = DraftLengths(costs, max_num_seqs=max_num_seqs, max_num_draft_tokens=max_num_draft_tokens)
        # Of the step at hand: when guessing began, and when it was done.
        self._began_s = self._started_s = 0.0

    def release(self, slots: tuple[int, ...]) -> None:
        """Before the slot table forgets them."""
        if slots:
            self._drafter.release(slots)

    def bind(self, admission: Admission) -> None:
        self._lengths.bind(admission.slot)
        self._drafter.bind(admission)

    def with_drafts(self, runs: Runs, table: SlotTable, sampler: Sampler) -> Runs:
        """The runs, those that continue with drafts to verify as far as there are any that pay."""
        self._began_s = time.perf_counter()
        with_drafts = self._add_drafts(runs, table, sampler)
        self._started_s = time.perf_counter()
        return with_drafts

    def observe(self, step: TargetStep, draws: Draws, table: SlotTable) -> DraftReport:
        """After the step, with `table` at its end."""
        now_s = time.perf_counter()
        runs, seconds = step.runs, now_s - self._started_s
        self._drafter.observe(step, table)
        self._lengths.record(draws.slots, draws.num_drafts, draws.counts - 1)
        num_draws, num_drafts = int(np.count_nonzero(runs.draws)), int(runs.num_drafts.sum())
        num_rows = int(runs.lens.sum()) - num_drafts
        if num_rows == num_draws:
            # Prompts go another way through the model.
            self._lengths.record_step(seconds, num_rows, num_drafts)
        undrafted_part = 0.0
        if num_drafts and len(draws.slots):
            undrafted_part = self._lengths.undrafted_part(num_rows, num_drafts) * float(draws.counts.mean())
            # Nothing would have been guessed either.
            undrafted_part *= seconds / (now_s - self._began_s)
        limit = self._lengths.most_useful(num_draws, num_rows) if num_draws else None
        return DraftReport(num_drafts=num_drafts, limit=limit, undrafted_part=undrafted_part)

    def _add_drafts(self, runs: Runs, table: SlotTable, sampler: Sampler) -> Runs:
        limits = table.num_possible_drafts(runs)
        if not limits.any():
            return runs
        num_draws, num_rows = int(np.count_nonzero(runs.draws)), int(runs.lens.sum())
        useful = self._lengths.useful(self._lengths.acceptance[runs.slots], num_draws, num_rows)
        limits = np.minimum(limits, useful)
        which = np.flatnonzero(limits)
        if not len(which):
            return runs
        drafts = self._guess(DraftRequests(slots=runs.slots[which], limits=limits[which]), table)
        if not len(drafts.token_ids):
            return runs
        lens = _possible_lens(runs.slots[which], drafts, sampler)
        lens = self._lengths.chosen(runs.slots[which], lens, num_draws, num_rows)
        if not lens.any():
            return runs
        num_drafts = np.zeros_like(runs.lens)
        num_drafts[which] = lens
        within = np.arange(len(drafts.token_ids)) - np.repeat(np.cumsum(drafts.lens) - drafts.lens, drafts.lens)
        kept = within < np.repeat(lens, drafts.lens)
        return table.add_drafts(runs, num_drafts, drafts.token_ids[kept])

    def _guess(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        started_s = time.perf_counter()
        drafts = self._drafter.propose(requests, table)
        if len(drafts.token_ids):
            self._lengths.record_guess(time.perf_counter() - started_s, int(drafts.lens.max()))
        return drafts


def _possible_lens(slots: NDArray[np.int64], drafts: Drafts, sampler: Sampler) -> NDArray[np.int64]:
    """The drafts of each of `slots` that its grammar lets follow each other: others are not worth a row."""
    if not sampler.constrains(slots):
        return drafts.lens
    parts = np.split(drafts.token_ids, np.cumsum(drafts.lens)[:-1])
    pairs = zip(slots.tolist(), parts, strict=True)
    return np.array([sampler.num_possible_drafts(slot, part) for slot, part in pairs], np.int64)
