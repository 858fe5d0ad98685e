"""Who is let in? Takes sequences from the queue into one worker's next step, and says why others stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pageloom.timeline import WaitReason
from scheduler_svc.core import policy
from scheduler_svc.core.block_table import Fork, Offer
from scheduler_svc.core.planning import StepDraft
from scheduler_svc.core.sequence import Binding, Order, Sequence
from scheduler_svc.core.waiting import WaitingQueue
from scheduler_svc.core.worker_group import WorkerGroup

# How many of one tenant that cannot be admitted now one plan looks past.
MAX_LOOKAHEAD = 32
# Who wait for a prefix hold nobody up, but each costs a look.
MAX_PREFIX_WAITS = 256
# Plans for which a sequence short of blocks is not looked at again, unless as many blocks have become free.
NUM_PLANS_TO_RETRY = 16
# The part of a step that small newcomers may take from prompts that are being computed.
EARLY_PART = 4


@dataclass(slots=True, eq=False)
class Admission:
    """One worker's admissions into one step; `take` is told of each before it is bound.

    Nobody blocks the queue: while a sequence waits for blocks, others that fit may pass it, but not with
    more blocks in all than it needs itself, so it is delayed by no more than its own size. One that would
    compute what another is computing already waits for that, and counts as passed by nobody.

    `early` admissions come before the chunks of prompts that are being computed: those whose turn it is before
    theirs, and, in a small part of the step, those that fit into it whole.
    """

    draft: StepDraft
    group: WorkerGroup
    waiting: WaitingQueue
    take: Callable[[Sequence, Offer], None]
    now: float
    early: bool
    blocked: list[Sequence] = field(default_factory=list)
    num_admitted_tokens: int = 0
    num_admitted_constraint_bytes: int = 0
    num_prefix_waits: int = 0
    num_stayed: Counter[int] = field(default_factory=Counter)
    _early_budget: int = 0
    _first_turn: tuple[int, Order] = (0, (0.0, 0, 0))

    def run(self, others_with_room: Callable[[Sequence], bool]) -> None:
        """`others_with_room` says whether a sequence's home, another worker, has room for it now."""
        if self.group.draining:
            return
        if self.early:
            self._early_budget = self.draft.budget // EARLY_PART
            self._first_turn = min(binding.sequence.turn for binding in self.group.catching_up)
        worker_id = self.group.hello.worker_id
        away: list[Sequence] = []
        for sequence in self.waiting.walk():
            if not self.group.holds(sequence):
                continue
            if sequence.home != worker_id:
                away.append(sequence)
            elif not self._consider(sequence):
                return
        # Then what is meant for others that have no room for it.
        for sequence in away:
            if not others_with_room(sequence) and not self._consider(sequence):
                return

    def _consider(self, sequence: Sequence) -> bool:
        """Admits it if it can be; whether to go on to the next."""
        if not self.group.free_slots:
            self._stays(sequence, WaitReason.SLOTS)
            return False
        if not self.group.has_slot(sequence):
            self._stays(sequence, WaitReason.SLOTS)
            return True
        if self.draft.budget == 0 or self._is_plan_full():
            self._stays(sequence, WaitReason.QUEUE)
            return False
        if self.num_stayed[sequence.tenant.index] >= MAX_LOOKAHEAD:
            return True
        if self._is_short_still(sequence):
            return self._blocks(sequence)
        offer = self._offer(sequence)
        if offer is None:
            sequence.history.waits(WaitReason.PREFIX, self.now)
            self.num_prefix_waits += 1
            return self.num_prefix_waits < MAX_PREFIX_WAITS
        if (num_missing_blocks := self._num_missing_blocks(sequence, offer)) > 0:
            num_needed_blocks = self.group.tables.pool.num_free + num_missing_blocks
            sequence.retry = (self.group.epoch, num_needed_blocks, self.group.num_steps + NUM_PLANS_TO_RETRY)
            return self._blocks(sequence, num_missing_blocks)
        if offer.num_taken_blocks > self._patience():
            self._stays(sequence, WaitReason.QUEUE)
            return True
        if self.early and not self._may_go_early(sequence, offer):
            # Who passes it here may take the blocks that it would get in its turn.
            self._stays(sequence, WaitReason.QUEUE)
            self.blocked.append(sequence)
            return self._patience() > 0
        self._admit(sequence, offer)
        return True

    def _is_plan_full(self) -> bool:
        return (
            self.num_admitted_tokens >= policy.MAX_ADMITTED_TOKENS
            or self.num_admitted_constraint_bytes >= policy.MAX_ADMITTED_CONSTRAINT_BYTES
        )

    def _may_go_early(self, sequence: Sequence, offer: Offer) -> bool:
        if sequence.turn < self._first_turn:
            return True
        num_tokens = len(sequence.token_ids) - offer.num_computed_tokens
        if num_tokens > self._early_budget:
            return False
        self._early_budget -= num_tokens
        return True

    def _is_short_still(self, sequence: Sequence) -> bool:
        """Whether it lacked blocks in a recent plan, and no more are free than then."""
        if sequence.retry is None or not self.group.bound:
            return False
        epoch, num_needed_blocks, step = sequence.retry
        is_recent = epoch == self.group.epoch and self.group.num_steps < step
        return is_recent and self.group.tables.pool.num_free < num_needed_blocks

    def _blocks(self, sequence: Sequence, num_missing_blocks: int = 0) -> bool:
        """It waits for blocks; whether others may pass it."""
        self._stays(sequence, WaitReason.BLOCKS, num_missing_blocks)
        self.blocked.append(sequence)
        return self._patience() > 0

    def _offer(self, sequence: Sequence) -> Offer | None:
        """What it would get; None if it had better wait for what is being computed."""
        tables, namespace = self.group.tables, self.group.namespace_of(sequence)
        hits = tables.cached_prefix(sequence, namespace)
        fork = self._fork(sequence)
        if fork is None and (tables.is_promised(sequence, namespace, len(hits)) or self._sibling_leads(sequence)):
            return None
        return tables.offer(sequence, hits, fork)

    def _fork(self, sequence: Sequence) -> Fork | None:
        """The prompt of a sibling that runs here, as far as it is computed and of use."""
        num_tokens = min(sequence.num_prompt_tokens, sequence.num_reusable_tokens)
        for binding in self._running_siblings(sequence):
            is_computed = self.group.columns.num_computed[binding.slot] >= num_tokens
            # The block of one that is a fork of this very plan is a copy yet to be made.
            if num_tokens and is_computed and binding not in self.draft.admitted:
                return Fork(binding=binding, num_tokens=num_tokens)
        return None

    def _sibling_leads(self, sequence: Sequence) -> bool:
        """Whether another choice of its request is computing the prompt and will be there to be forked from."""
        if any(sibling.finished for sibling in sequence.siblings):
            # They end early, so waiting for one after the other would take long.
            return False
        if sequence.is_scoring:
            # It computes the prompt itself.
            return False
        columns = self.group.columns
        return any(
            columns.num_computed[binding.slot] < sequence.num_prompt_tokens and binding.sequence.max_tokens > 1
            for binding in self._running_siblings(sequence)
        )

    def _running_siblings(self, sequence: Sequence) -> list[Binding]:
        if len(sequence.siblings) == 1:
            return []
        here = self.group.hello.worker_id
        bindings = [sibling.binding for sibling in sequence.siblings]
        return [
            binding
            for binding in bindings
            if binding is not None and binding.worker_id == here and self.group.columns.active[binding.slot]
        ]

    def _num_missing_blocks(self, sequence: Sequence, offer: Offer) -> int:
        num_reserved_blocks = self.group.num_reserved_blocks(sequence)
        return offer.num_taken_blocks + num_reserved_blocks - self.group.tables.pool.num_free

    def _patience(self) -> int:
        """Blocks that may still pass those who wait for blocks."""
        tables = self.group.tables
        return min(
            (tables.num_blocks_for(len(sequence.token_ids)) - sequence.num_passed_blocks for sequence in self.blocked),
            default=tables.pool.num_blocks,
        )

    def _admit(self, sequence: Sequence, offer: Offer) -> None:
        for passed in self.blocked:
            passed.num_passed_blocks += offer.num_taken_blocks
        self.take(sequence, offer)
        sequence.num_passed_blocks = 0
        sequence.retry = None
        self.num_admitted_tokens += len(sequence.token_ids)
        self.num_admitted_constraint_bytes += sequence.request.sampling.num_constraint_bytes
        self.draft.admit(sequence, offer)

    def _stays(self, sequence: Sequence, reason: WaitReason, num_missing_blocks: int = 0) -> None:
        self.num_stayed[sequence.tenant.index] += 1
        sequence.history.waits(reason, self.now, num_missing_blocks=num_missing_blocks)
