"""Drives a ModelRunner by hand-made plans: a scheduler reduced to what the worker sees of one.

Requests arrive one a step, their prompts run in chunks of random lengths beside the decodes of the
others, blocks come in random order and as late as possible, and slots are used again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pageloom.outputs import PromptLogprobs, TokenLogprobs
from pageloom.plan import Admission, BatchPlan, Failure, StepResult
from pageloom.policies import Pooling
from pageloom.sampling_params import SamplingParams
from worker_svc.runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=1)


@dataclass(slots=True)
class DrivenSequence:
    """A request in a slot."""

    index: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    pooling: Pooling | None
    computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class PlanDriver:
    """One epoch of plans for `runner`, made from random choices under `seed`."""

    def __init__(
        self, runner: ModelRunner, *, epoch: int = 1, seed: int = 0, max_chunk: int = 64, num_drafts: int = 0
    ) -> None:
        self._runner = runner
        self._epoch = epoch
        self._step = 0
        self._rng = random.Random(seed)
        self._max_chunk = max_chunk
        # That each slot may run in a step.
        self._num_drafts = num_drafts
        self.num_accepted = 0
        self._free_blocks = list(range(runner.cache_info.num_blocks))
        self._rng.shuffle(self._free_blocks)
        self._bound: dict[int, DrivenSequence] = {}
        self._released: list[int] = []
        self.failures: dict[int, Failure] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[int, list[PromptLogprobs]] = {}
        self.embeddings: dict[int, bytes] = {}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sequence[SamplingParams] | None = None,
        pooling: Sequence[Pooling | None] | None = None,
    ) -> list[list[int]]:
        """The new tokens of each prompt. A failed one has those from before its failure, a pooled one none."""
        waiting = [
            DrivenSequence(
                index,
                list(prompt),
                len(prompt),
                replace(GREEDY if sampling is None else sampling[index], max_tokens=max_new_tokens),
                None if pooling is None else pooling[index],
            )
            for index, prompt in enumerate(prompts)
        ]
        outputs: dict[int, list[int]] = {}
        while waiting or self._bound:
            admitted = self._admit(waiting)
            result = self._run(admitted)
            for slot in (*result.slots, *result.failures, *result.embeddings):
                sequence = self._bound[slot]
                output = sequence.tokens[sequence.num_prompt_tokens :]
                if slot not in result.slots or len(output) == max_new_tokens:
                    outputs[sequence.index] = output
                    self._release(slot)
        return [outputs[i] for i in range(len(prompts))]

    def _admit(self, waiting: list[DrivenSequence]) -> tuple[int, ...]:
        free = [slot for slot in range(self._runner.max_num_seqs) if slot not in self._bound]
        if not waiting or not free:
            return ()
        slot = self._rng.choice(free)
        self._bound[slot] = waiting.pop(0)
        return (slot,)

    def _run(self, admitted: tuple[int, ...]) -> StepResult:
        chunks, grown = {}, {}
        budget = self._runner.max_num_batched_tokens - (1 + self._num_drafts) * len(self._bound)
        for slot, sequence in self._bound.items():
            length = 1
            if sequence.computed < sequence.num_prompt_tokens:
                rest = sequence.num_prompt_tokens - sequence.computed
                length = chunks[slot] = min(rest, self._rng.randint(1, self._max_chunk), budget)
                budget -= length
                sequence.computed += length
                num_tokens = sequence.computed
            else:
                num_tokens = min(sequence.computed + 1 + self._num_drafts, self._runner.model_info.max_model_len)
            grown[slot] = self._grow(sequence, num_tokens)
        plan = self._plan(admitted, chunks, grown)
        result = self._runner.step(plan)
        token_ids = iter(result.token_ids)
        for slot, count in zip(result.slots, result.token_counts or (1,) * len(result.slots), strict=True):
            self._bound[slot].tokens += itertools.islice(token_ids, count)
            if slot not in chunks:
                self._bound[slot].computed += count
            self.num_accepted += count - 1
        for slot, logprobs in result.logprobs.items():
            self.logprobs.setdefault(self._bound[slot].index, []).extend(logprobs)
        for slot, scores in result.prompt_logprobs.items():
            self.prompt_logprobs.setdefault(self._bound[slot].index, []).append(scores)
        self.embeddings |= {self._bound[slot].index: vector for slot, vector in result.embeddings.items()}
        self.failures |= {self._bound[slot].index: failure for slot, failure in result.failures.items()}
        return result

    def _grow(self, sequence: DrivenSequence, num_tokens: int) -> list[int]:
        block_size = self._runner.cache_info.block_size
        missing = -(-num_tokens // block_size) - len(sequence.block_ids)
        new = [self._free_blocks.pop() for _ in range(missing)]
        sequence.block_ids += new
        return new

    def _plan(self, admitted: tuple[int, ...], chunks: dict[int, int], grown: dict[int, list[int]]) -> BatchPlan:
        self._step += 1
        released, self._released = tuple(self._released), []
        # A slot's first blocks come with its admission.
        deltas = {slot: blocks for slot, blocks in grown.items() if blocks and slot not in admitted}
        return BatchPlan(
            epoch=self._epoch,
            step=self._step,
            released_slots=released,
            admissions=tuple(self._admission(slot) for slot in admitted),
            grown_slots=tuple(deltas),
            grown_counts=tuple(len(blocks) for blocks in deltas.values()),
            grown_block_ids=tuple(block_id for blocks in deltas.values() for block_id in blocks),
            chunk_slots=tuple(chunks),
            chunk_lens=tuple(chunks.values()),
            draft_slots=admitted if self._num_drafts else (),
            draft_limits=(self._num_drafts,) * len(admitted) if self._num_drafts else (),
        )

    def _admission(self, slot: int) -> Admission:
        sequence = self._bound[slot]
        return Admission(
            slot=slot,
            token_ids=tuple(sequence.tokens),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_computed_tokens=0,
            block_ids=tuple(sequence.block_ids),
            sampling=sequence.sampling,
            pooling=sequence.pooling,
            first_scored_token=int(sequence.sampling.prompt_logprobs is not None and sequence.num_prompt_tokens > 1),
        )

    def _release(self, slot: int) -> None:
        sequence = self._bound.pop(slot)
        self._released.append(slot)
        self._free_blocks += sequence.block_ids
        self._rng.shuffle(self._free_blocks)
