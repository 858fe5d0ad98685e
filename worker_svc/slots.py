"""What the worker remembers between steps: each slot's tokens, progress and block table.

The scheduler owns this state; the table mirrors it from the deltas in each BatchPlan, by the rules in
protos/pageloom/rpc/v1/worker.proto. Only `ModelRunner.step` writes here. Everything is a column over
all slots, so that a step of continuing decodes touches no slot one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom.errors import EngineError
from pageloom.plan import Admission, BatchPlan, Failure
from pageloom.policies import Pooling


class PlanError(EngineError):
    """A plan contradicts the worker's slots: the two sides have lost each other's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The sequences of one step, those with one token first. All arrays are [seqs].

    The last `num_drafts` tokens of a run are guesses, which the step verifies: the run draws after each, and after the
    last known token before them.
    """

    slots: NDArray[np.int64]
    lens: NDArray[np.int64]
    starts: NDArray[np.int64]  # computed tokens before the step
    draws: NDArray[np.bool_]  # whether the run reaches the slot's last known token, and its prompt is not pooled
    num_drafts: NDArray[np.int64]

    @property
    def draw_slots(self) -> NDArray[np.int64]:
        return self.slots[self.draws]

    def ordered(self) -> Runs:
        """The same, those with one token first."""
        is_longer = self.lens > 1
        if not (is_longer[:-1] > is_longer[1:]).any():
            return self
        order = np.argsort(is_longer, kind="stable")
        return Runs(
            slots=self.slots[order],
            lens=self.lens[order],
            starts=self.starts[order],
            draws=self.draws[order],
            num_drafts=self.num_drafts[order],
        )


class SlotTable:
    """Columns over the slots 0 to max_num_seqs - 1; entries of unbound slots mean nothing."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        vocab_size: int,
    ) -> None:
        self.block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        # np.zeros leaves untouched pages unmapped, so the wide columns cost what is used of them.
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.block_tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_slot_blocks = np.zeros(max_num_seqs, np.int64)
        # Tokens that a slot may come to, and drafts that it may run in a step.
        self._max_lens = np.zeros(max_num_seqs, np.int64)
        self._draft_limits = np.zeros(max_num_seqs, np.int64)
        self._bound = np.zeros(max_num_seqs, np.bool_)
        self._drew = np.zeros(max_num_seqs, np.bool_)
        # Whose prompt is pooled: it draws nothing.
        self._pools = np.zeros(max_num_seqs, np.bool_)
        # Bound slots that must not run, and why: one bad request may not end the step of the others.
        self._rejected: dict[int, Failure] = {}
        self._epoch = 0
        self.num_used_blocks = 0  # up to the highest block id that a slot was ever given

    def apply(self, plan: BatchPlan) -> list[Admission]:
        """Takes over the plan's changes; returns the admissions that can run.

        Raises PlanError. The table is then of no use until a snapshot or a new epoch, which empties it.
        """
        if plan.snapshot or plan.epoch != self._epoch:
            self._epoch = plan.epoch
            self._release(slice(None))
            self._rejected.clear()
        if plan.released_slots:
            self._release(self._bound_slots(plan.released_slots, "released"))
            for slot in plan.released_slots:
                self._rejected.pop(slot, None)
        for admission in plan.admissions:
            self._admit(admission)
        self._grow(plan)
        if plan.draft_slots:
            self._limit_drafts(plan)
        return [admission for admission in plan.admissions if admission.slot not in self._rejected]

    def released(self, plan: BatchPlan) -> tuple[int, ...]:
        """The slots that the plan frees."""
        if plan.snapshot or plan.epoch != self._epoch:
            return tuple(np.flatnonzero(self._bound).tolist())
        return plan.released_slots

    def reject(self, slot: int, failure: Failure) -> None:
        """The bound `slot` must not run: it fails when a plan wants it to."""
        self._rejected[slot] = failure

    def select_runs(self, plan: BatchPlan) -> tuple[Runs, dict[int, Failure]]:
        """The sequences that the plan runs, and why the slots that it cannot run fail.

        Raises PlanError if a run goes past what the slot's tokens or blocks hold.
        """
        chunk_slots = self._bound_slots(plan.chunk_slots, "run")
        continues = self._drew & (self.num_tokens < self._max_lens)
        continues[chunk_slots] = False
        continues[self._bound_slots(plan.held_slots, "held")] = False
        decode_slots = np.flatnonzero(continues)
        slots = np.concatenate((decode_slots, chunk_slots))
        lens = np.concatenate((np.ones_like(decode_slots), np.array(plan.chunk_lens, np.int64)))
        if len(slots) != len(lens) or lens.min(initial=1) < 1:
            raise PlanError("chunk_lens must hold one length of at least 1 for each of chunk_slots")
        failures: dict[int, Failure] = {}
        if self._rejected:
            failures = {slot: self._rejected[slot] for slot in slots.tolist() if slot in self._rejected}
            runnable = ~np.isin(slots, list(failures))
            slots, lens = slots[runnable], lens[runnable]
        return self._checked_runs(slots, lens).ordered(), failures

    def begin(self, runs: Runs) -> None:
        """Records that `runs` are on their way, and so what those that draw nothing will have computed: a step after
        this one may be selected before `advance`."""
        slots = runs.slots[~runs.draws]
        self.num_computed_tokens[slots] = (runs.starts + runs.lens)[~runs.draws]
        self._drew[runs.slots] = False

    def num_possible_drafts(self, runs: Runs) -> NDArray[np.int64]:
        """Most drafts that each of `runs` may verify besides, [seqs]: 0 for one that does not merely continue."""
        num_places = self._num_slot_blocks[runs.slots] * self.block_size - runs.starts - runs.lens
        # The token after the last draft must have its place too.
        num_left = self._max_lens[runs.slots] - self.num_tokens[runs.slots] - 1
        limits = np.minimum(np.minimum(num_places, num_left), self._draft_limits[runs.slots])
        return np.where(self._drew[runs.slots], limits, 0)

    def add_drafts(self, runs: Runs, num_drafts: NDArray[np.int64], token_ids: NDArray[np.int64]) -> Runs:
        """The runs with `num_drafts` [seqs] drafts each, whose tokens [sum of num_drafts] follow the known ones until
        the step is over."""
        slots = np.repeat(runs.slots, num_drafts)
        self.token_ids[slots, np.repeat(self.num_tokens[runs.slots], num_drafts) + _ranks(num_drafts)] = token_ids
        longer = Runs(
            slots=runs.slots, lens=runs.lens + num_drafts, starts=runs.starts, draws=runs.draws, num_drafts=num_drafts
        )
        return longer.ordered()

    def advance(
        self, runs: Runs, slots: NDArray[np.int64], counts: NDArray[np.int64], token_ids: NDArray[np.int64]
    ) -> None:
        """Records that `runs` are computed, as far as their drafts were right, and that `slots` (unique) drew `counts`
        tokens each of `token_ids`."""
        # A prompt's next chunk may have begun meanwhile.
        num_computed = np.maximum(self.num_computed_tokens[runs.slots], runs.starts + runs.lens - runs.num_drafts)
        self.num_computed_tokens[runs.slots] = num_computed
        self._drew[runs.slots] = False
        if len(token_ids) == len(slots):
            self.token_ids[slots, self.num_tokens[slots]] = token_ids
            self.num_tokens[slots] += 1
        else:
            positions = np.repeat(self.num_tokens[slots], counts) + _ranks(counts)
            self.token_ids[np.repeat(slots, counts), positions] = token_ids
            self.num_tokens[slots] += counts
            self.num_computed_tokens[slots] += counts - 1
        self._drew[slots] = True

    def _release(self, slots: NDArray[np.int64] | slice) -> None:
        self._bound[slots] = False
        self._drew[slots] = False

    def _admit(self, admission: Admission) -> None:
        slot, tokens = admission.slot, np.array(admission.token_ids, np.int64)
        if not 0 <= slot < len(self._bound):
            raise PlanError(f"slot {slot} is admitted; this worker has slots 0 to {len(self._bound) - 1}")
        if self._bound[slot]:
            raise PlanError(f"slot {slot} is admitted while it is bound")
        num_computed, num_prompt = admission.num_computed_tokens, admission.num_prompt_tokens
        if not (0 <= num_computed < len(tokens) <= self._max_model_len and 1 <= num_prompt <= len(tokens)):
            raise PlanError(
                f"slot {slot} is admitted with {len(tokens)} tokens, {num_prompt} of them prompt and {num_computed} "
                f"computed; this worker holds 1 to {self._max_model_len} and needs one that is not computed"
            )
        if admission.pooling is Pooling.mean and num_computed:
            raise PlanError(
                f"slot {slot} is to take the mean of its prompt, of which {num_computed} tokens are computed"
            )
        self._bound[slot] = True
        self._pools[slot] = admission.pooling is not None
        self._num_slot_blocks[slot] = 0
        self._append_blocks(slot, admission.block_ids)
        self.num_tokens[slot] = len(tokens)
        max_tokens = self._max_model_len if admission.sampling.max_tokens is None else admission.sampling.max_tokens
        self._max_lens[slot] = min(admission.num_prompt_tokens + max_tokens, self._max_model_len)
        self._draft_limits[slot] = 0
        self.num_prompt_tokens[slot] = admission.num_prompt_tokens
        self.num_computed_tokens[slot] = admission.num_computed_tokens
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            message = f"a token id is outside the model's vocabulary of {self._vocab_size}"
            self._rejected[slot] = Failure(message)
            return
        self.token_ids[slot, : len(tokens)] = tokens

    def _grow(self, plan: BatchPlan) -> None:
        if len(plan.grown_slots) != len(plan.grown_counts) or sum(plan.grown_counts) != len(plan.grown_block_ids):
            raise PlanError("grown_slots, grown_counts and grown_block_ids do not fit each other")
        self._bound_slots(plan.grown_slots, "grown")
        start = 0
        for slot, count in zip(plan.grown_slots, plan.grown_counts, strict=True):
            self._append_blocks(slot, plan.grown_block_ids[start : start + count])
            start += count

    def _limit_drafts(self, plan: BatchPlan) -> None:
        if len(plan.draft_slots) != len(plan.draft_limits):
            raise PlanError("draft_limits must hold one limit for each of draft_slots")
        self._draft_limits[self._bound_slots(plan.draft_slots, "given a draft limit")] = plan.draft_limits

    def _append_blocks(self, slot: int, block_ids: tuple[int, ...]) -> None:
        start = int(self._num_slot_blocks[slot])
        end = start + len(block_ids)
        if end > self.block_tables.shape[1]:
            raise PlanError(f"slot {slot} gets {end} blocks; a full context takes {self.block_tables.shape[1]}")
        if block_ids:
            if not 0 <= min(block_ids) <= max(block_ids) < self._num_blocks:
                raise PlanError(f"slot {slot} gets a block that is not one of 0 to {self._num_blocks - 1}")
            self.num_used_blocks = max(self.num_used_blocks, max(block_ids) + 1)
        self.block_tables[slot, start:end] = block_ids
        self._num_slot_blocks[slot] = end

    def _bound_slots(self, slots: tuple[int, ...], verb: str) -> NDArray[np.int64]:
        array = np.array(slots, np.int64)
        if array.size == 0:
            return array
        if array.min() < 0 or array.max() >= len(self._bound) or not self._bound[array].all():
            unbound = next(slot for slot in slots if not 0 <= slot < len(self._bound) or not self._bound[slot])
            raise PlanError(f"slot {unbound} is {verb} but not bound")
        if len(np.unique(array)) != len(array):
            raise PlanError(f"a slot is {verb} twice in one plan")
        return array

    def _checked_runs(self, slots: NDArray[np.int64], lens: NDArray[np.int64]) -> Runs:
        if lens.sum() > self._max_num_batched_tokens:
            raise PlanError(
                f"{lens.sum()} tokens are to run; this worker takes {self._max_num_batched_tokens} in a step"
            )
        starts, known = self.num_computed_tokens[slots], self.num_tokens[slots]
        ends = starts + lens
        draws = (ends == known) & ~self._pools[slots]
        too_far = (ends > known) | (ends > self._num_slot_blocks[slots] * self.block_size)
        # A drawn token takes the position `known`, which must exist.
        too_far |= draws & (known >= self._max_model_len)
        if too_far.any():
            i = int(np.flatnonzero(too_far)[0])
            slot = int(slots[i])
            raise PlanError(
                f"slot {slot} cannot run tokens {starts[i]} to {ends[i] - 1}: it knows {known[i]} tokens and has "
                f"{self._num_slot_blocks[slot]} blocks of {self.block_size}; the context is {self._max_model_len}"
            )
        return Runs(slots=slots, lens=lens, starts=starts, draws=draws, num_drafts=np.zeros_like(lens))


def _ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... for each of `counts`, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
