"""What runs in the next step? Puts one plan together under the worker's budget of tokens, slots and blocks."""

from __future__ import annotations

import itertools

import numpy as np

from pageloom.plan import Admission, BatchPlan
from scheduler_svc.core import policy
from scheduler_svc.core.block_table import Offer
from scheduler_svc.core.emission import StepFacts
from scheduler_svc.core.lookahead import Lookahead
from scheduler_svc.core.sequence import Binding, Order, Sequence
from scheduler_svc.core.slot_columns import Bools, Ints
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup

_NO_SLOTS = np.zeros(0, np.int64)


class StepDraft:
    """A step being planned. Blocks and slots are taken at once, here; progress is made at commit.

    There is no prefill and no decode phase: each sequence has known tokens and computed tokens, and a
    step lets some of the latter catch up. One that is a single token behind because its last run drew it
    continues without a word in the plan, whether or not the token has arrived here; all else is a chunk.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._step = group.num_steps + 1
        self.budget = group.max_num_batched_tokens
        self._decode_slots = _NO_SLOTS
        # None: the worker guesses no tokens.
        self._lookahead = Lookahead(group) if group.max_num_draft_tokens else None
        self._held_slots: list[int] = []
        # Who could not take part for want of a block or of budget.
        self._short_slots: list[int] = []
        self._chunks: list[tuple[int, int]] = []
        self._drawing_slots: list[int] = []
        self._scored_tokens: dict[int, range] = {}
        self._pooled_slots: list[int] = []
        self._grown: dict[int, list[int]] = {}
        self._copies: list[tuple[int, int]] = []
        self.admitted: list[Binding] = []
        # (victim, claimant, whether the victim waits again at once)
        self.preempted: list[tuple[Binding, Sequence, bool]] = []

    def continue_decodes(self) -> None:
        """First, so that no chunk delays them: one token for each, and drafts besides, as far as budget and blocks
        go."""
        columns = self._group.columns
        ready = columns.active & columns.continues
        # Whose last token is in flight, and who has to see the one in flight, may not run ahead.
        runs = ready & (columns.num_drawn < columns.max_len)
        runs &= ~(columns.waits_for_tokens & (columns.num_drawn > columns.num_known))
        if self._group.num_stages > 1:
            slots = self._turn(self._without_those_away(runs), num_ready=int(np.count_nonzero(runs)))
        else:
            slots = self._with_room(runs)
        if len(slots) > self.budget:
            first_slots = self._first_in_memory(slots)
            self._short_slots += np.setdiff1d(slots, first_slots).tolist()
            slots = first_slots
        held = ready & columns.active
        held[slots] = False
        self._held_slots = np.flatnonzero(held).tolist()
        self._decode_slots = slots
        self.budget -= len(slots)
        if self._lookahead is not None:
            num_drafts = self._lookahead.allow(slots, self.budget + len(slots))
            if num_drafts:
                self._make_room_for_drafts(self._lookahead.missing_blocks(slots))
            self.budget -= num_drafts
        columns.num_planned[slots] += 1
        columns.num_drawn[slots] += 1
        columns.last_step[slots] = self._step

    def continue_chunks(self) -> None:
        """Then those that are further behind, in the order of the queue. They have their blocks since their
        admission. Newcomers of this step have had their chunk."""
        newcomers = {binding.slot for binding in self.admitted}
        for binding in sorted(self._group.catching_up, key=lambda binding: binding.sequence.turn):
            if binding.slot in newcomers:
                continue
            if self.budget == 0:
                self._short_slots.append(binding.slot)
            else:
                self._run_chunk(binding)

    def admit(self, sequence: Sequence, offer: Offer) -> Binding:
        """Binds a newcomer and runs its first chunk."""
        binding, copy = self._group.bind(sequence, offer)
        if copy is not None:
            assert offer.fork is not None
            self._copies.append(copy)
            # The copy reads a block of the sibling, which must stay until then.
            self._group.columns.last_step[offer.fork.binding.slot] = self._step
        self.admitted.append(binding)
        self._run_chunk(binding)
        return binding

    def step(self) -> Step | None:
        """The finished step; None if nothing runs."""
        num_chunks, num_decodes = len(self._chunks), len(self._decode_slots)
        if not num_chunks and not num_decodes:
            return None
        self._group.columns.num_held_steps[self._short_slots] += 1
        chunk_slots = np.array([slot for slot, _ in self._chunks], np.int64)
        drawing_slots = self._decode_slots
        if self._drawing_slots:
            drawing_slots = np.concatenate((drawing_slots, np.array(self._drawing_slots, np.int64)))
        return Step(
            plan=self._plan(),
            decode_slots=self._decode_slots,
            draft_limits=None if self._lookahead is None else self._lookahead.limits,
            chunk_slots=chunk_slots,
            chunk_lens=np.array([num_tokens for _, num_tokens in self._chunks], np.int64),
            drawing_slots=drawing_slots,
            scored_tokens=self._scored_tokens,
            pooled_slots=tuple(self._pooled_slots),
            facts=StepFacts(
                num_seqs=num_decodes + num_chunks,
                num_tokens=num_decodes + sum([num_tokens for _, num_tokens in self._chunks]),
                num_decode_seqs=num_decodes,
                num_admitted=len(self.admitted),
                num_preempted=len(self.preempted),
            ),
        )

    def _without_those_away(self, runs: Bools) -> Bools:
        """With several stages: without who is in the steps right before this one. Their tokens are drawn at the last
        stage while this step begins at the first, which would have to wait for them; but a step that waits is better
        than none."""
        group, last_steps = self._group, self._group.columns.last_step
        is_away = (last_steps > group.num_committed_steps) & (last_steps > self._step - group.num_stages)
        here: Bools = runs & ~is_away
        return here if here.any() or len(group.catching_up) else runs

    def _turn(self, runs: Bools, *, num_ready: int) -> Ints:
        """As many as leave each stage its part of those that could run: first who ran longest ago. One without room
        takes nobody's turn, and none gets a block before its turn."""
        num_most = -(-num_ready // self._group.num_stages)
        waiting = np.flatnonzero(runs)
        waiting = waiting[np.argsort(self._group.columns.last_step[waiting], kind="stable")]
        taken = _NO_SLOTS
        while len(waiting) and len(taken) < num_most:
            chosen = np.zeros_like(runs)
            num_left = num_most - len(taken)
            chosen[waiting[:num_left]] = True
            waiting = waiting[num_left:]
            taken = np.concatenate((taken, self._with_room(chosen)))
        # Growth of a later one may have preempted some.
        return np.sort(taken[self._group.columns.active[taken]])

    def _with_room(self, runs: Bools) -> Ints:
        """The slots of `runs` that have a block for their next token; those whose blocks are full get one if they
        can."""
        columns = self._group.columns
        planned = columns.num_planned if self._lookahead is None else self._lookahead.most_planned()
        full_slots: list[int] = np.flatnonzero(runs & (planned >= columns.capacity)).tolist()
        for binding in sorted(map(self._bound_at, full_slots), key=_order):
            # An earlier one may have preempted it.
            if columns.active[binding.slot] and not self._grow(binding):
                runs[binding.slot] = False
                self._short_slots.append(binding.slot)
        return np.flatnonzero(runs & columns.active)

    def _grow(self, binding: Binding) -> bool:
        group = self._group
        block_id = group.tables.grow(binding)
        while block_id is None:
            if group.columns.num_drafts_ahead[binding.slot]:
                # Once it is known how many of its drafts were right it may need none.
                return False
            # While some are closing their blocks are on the way, and nobody else has to go.
            victim = None if group.closing else policy.victim_for(binding, group)
            if victim is None:
                return False
            self.preempted.append((victim, binding.sequence, group.close(victim)))
            block_id = group.tables.grow(binding)
        self._add_block(binding, block_id)
        return True

    def _make_room_for_drafts(self, missing_blocks: dict[int, int]) -> None:
        for binding in sorted(map(self._bound_at, missing_blocks), key=_order):
            self._grow_if_spare(binding, missing_blocks[binding.slot])

    def _grow_if_spare(self, binding: Binding, num_blocks: int) -> None:
        """For drafts, blocks beyond the one that is left for the growth of each. They serve what it draws later."""
        group = self._group
        for _ in range(min(num_blocks, group.tables.pool.num_free - len(group.bound))):
            block_id = group.tables.grow(binding)
            assert block_id is not None
            self._add_block(binding, block_id)

    def _add_block(self, binding: Binding, block_id: int) -> None:
        columns = self._group.columns
        self._grown.setdefault(binding.slot, []).append(block_id)
        columns.capacity[binding.slot] += self._group.tables.block_size
        columns.last_step[binding.slot] = self._step

    def _first_in_memory(self, slots: Ints) -> Ints:
        bindings = sorted(map(self._bound_at, slots.tolist()), key=_order)
        return np.sort(np.array([binding.slot for binding in bindings[: self.budget]], np.int64))

    def _bound_at(self, slot: int) -> Binding:
        binding = self._group.by_slot[slot]
        assert binding is not None
        return binding

    def _run_chunk(self, binding: Binding) -> None:
        columns, slot = self._group.columns, binding.slot
        num_remaining_tokens = int(columns.num_known[slot] - columns.num_planned[slot])
        num_tokens = policy.chunk_len(num_remaining_tokens, self.budget)
        self.budget -= num_tokens
        self._chunks.append((slot, num_tokens))
        if binding.num_scored_at_start < binding.sequence.num_prompt_tokens:
            self._score(binding, int(columns.num_planned[slot]), num_tokens)
        columns.num_planned[slot] += num_tokens
        columns.last_step[slot] = self._step
        if num_tokens < num_remaining_tokens:
            return
        self._group.catching_up.remove(binding)
        if binding.sequence.request.pooling is not None:
            self._pooled_slots.append(slot)
            return
        columns.num_drawn[slot] += 1
        columns.continues[slot] = True
        self._drawing_slots.append(slot)

    def _score(self, binding: Binding, start: int, num_tokens: int) -> None:
        """Notes the prompt tokens after those of a chunk, as far as they are to be scored."""
        first = max(start + 1, binding.num_scored_at_start)
        end = min(start + 1 + num_tokens, binding.sequence.num_prompt_tokens)
        if first < end:
            self._scored_tokens[binding.slot] = range(first, end)

    def _plan(self) -> BatchPlan:
        group = self._group
        return BatchPlan(
            epoch=group.epoch,
            step=self._step,
            snapshot=group.num_steps == 0,
            released_slots=tuple(group.released_slots),
            admissions=tuple([_admission(binding, group) for binding in self.admitted]),
            grown_slots=tuple(self._grown),
            grown_counts=tuple(map(len, self._grown.values())),
            grown_block_ids=tuple(itertools.chain.from_iterable(self._grown.values())),
            chunk_slots=tuple([slot for slot, _ in self._chunks]),
            chunk_lens=tuple([num_tokens for _, num_tokens in self._chunks]),
            held_slots=tuple(self._held_slots),
            copy_source_block_ids=tuple([source for source, _ in self._copies]),
            copy_target_block_ids=tuple([target for _, target in self._copies]),
            draft_slots=() if self._lookahead is None else self._lookahead.changed_slots,
            draft_limits=() if self._lookahead is None else self._lookahead.changed_limits,
        )


def _order(binding: Binding) -> Order:
    return binding.order


def _admission(binding: Binding, group: WorkerGroup) -> Admission:
    sequence = binding.sequence
    return Admission(
        slot=binding.slot,
        token_ids=tuple(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=int(group.columns.num_computed[binding.slot]),
        block_ids=tuple(binding.block_ids),
        sampling=sequence.request.sampling,
        choice_index=sequence.choice_index,
        first_scored_token=sequence.num_scored_tokens if sequence.is_scoring else 0,
        pooling=sequence.request.pooling,
    )
