"""What runs in the next step? Puts one plan together under the worker's budget of tokens, slots and blocks."""

from __future__ import annotations

from pageloom.plan import Admission, BatchPlan
from scheduler_svc.core import policy
from scheduler_svc.core.emission import StepFacts
from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup


class StepDraft:
    """A step being planned. Blocks and slots are taken at once, here; progress is made at commit.

    There is no prefill and no decode phase: each sequence has known tokens and computed tokens, and a
    step lets some of the latter catch up. One that is a single token behind because it just drew it
    continues without a word in the plan; everything else is a chunk.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._budget = group.max_num_batched_tokens
        self._runs: list[tuple[Binding, int]] = []
        self._num_decode_seqs = 0
        self._drawing_slots: list[int] = []
        self._held_slots: list[int] = []
        self._grown_slots: list[int] = []
        self._grown_block_ids: list[int] = []
        self.preempted: list[Sequence] = []
        self.admitted: list[Binding] = []

    def continue_decodes(self) -> None:
        """First, so that no chunk delays them: one token for each, in order, as far as budget and blocks go."""
        block_size = self._group.tables.block_size
        # A copy, for growth may preempt some of those that come later.
        for binding in tuple(self._group.bound):
            if not binding.continues or binding.sequence.binding is None:
                continue
            needs_block = binding.num_computed_tokens == len(binding.block_ids) * block_size
            if self._budget == 0 or (needs_block and not self._grow(binding)):
                self._held_slots.append(binding.slot)
                continue
            self._budget -= 1
            self._runs.append((binding, 1))
            self._drawing_slots.append(binding.slot)
        self._num_decode_seqs = len(self._runs)

    def continue_chunks(self) -> None:
        """Then those that are further behind. They have their blocks since their admission."""
        for binding in self._group.bound:
            if self._budget == 0:
                return
            if not binding.continues:
                self._run_chunk(binding)

    def admit(self, waiting: Ordered[Sequence]) -> None:
        """Last, newcomers from the queue, until budget, slots or blocks are used up."""
        num_admitted_tokens = 0
        while self._budget and num_admitted_tokens < policy.MAX_ADMITTED_TOKENS:
            sequence = policy.next_to_admit(waiting, self._group.num_kv_tokens)
            binding = None if sequence is None else self._group.bind(sequence)
            if sequence is None or binding is None:
                return
            waiting.remove(sequence)
            self.admitted.append(binding)
            num_admitted_tokens += len(sequence.token_ids)
            self._run_chunk(binding)

    def step(self) -> Step | None:
        """The finished step; None if nothing runs. Then nothing was taken or preempted either."""
        if not self._runs:
            return None
        return Step(
            plan=self._plan(),
            runs=tuple(self._runs),
            drawing_slots=frozenset(self._drawing_slots),
            facts=StepFacts(
                num_seqs=len(self._runs),
                num_tokens=self._group.max_num_batched_tokens - self._budget,
                num_decode_seqs=self._num_decode_seqs,
                num_admitted=len(self.admitted),
                num_preempted=len(self.preempted),
            ),
        )

    def _grow(self, binding: Binding) -> bool:
        block_id = self._group.tables.grow(binding)
        while block_id is None:
            victim = policy.victim_for(binding, self._group.bound)
            if victim is None:
                return False
            self._group.unbind(victim)
            self.preempted.append(victim.sequence)
            block_id = self._group.tables.grow(binding)
        self._grown_slots.append(binding.slot)
        self._grown_block_ids.append(block_id)
        return True

    def _run_chunk(self, binding: Binding) -> None:
        num_tokens = policy.chunk_len(binding.num_remaining_tokens, self._budget)
        self._budget -= num_tokens
        self._runs.append((binding, num_tokens))
        if num_tokens == binding.num_remaining_tokens:
            self._drawing_slots.append(binding.slot)

    def _plan(self) -> BatchPlan:
        group = self._group
        chunks = self._runs[self._num_decode_seqs :]
        return BatchPlan(
            epoch=group.epoch,
            step=group.num_steps + 1,
            snapshot=group.num_steps == 0,
            released_slots=tuple(group.released_slots),
            admissions=tuple([_admission(binding) for binding in self.admitted]),
            grown_slots=tuple(self._grown_slots),
            grown_counts=(1,) * len(self._grown_slots),
            grown_block_ids=tuple(self._grown_block_ids),
            chunk_slots=tuple([binding.slot for binding, _ in chunks]),
            chunk_lens=tuple([num_tokens for _, num_tokens in chunks]),
            held_slots=tuple(self._held_slots),
        )


def _admission(binding: Binding) -> Admission:
    sequence = binding.sequence
    return Admission(
        slot=binding.slot,
        token_ids=tuple(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=binding.num_computed_tokens,
        block_ids=tuple(binding.block_ids),
        sampling=sequence.request.sampling,
        choice_index=sequence.choice_index,
    )
