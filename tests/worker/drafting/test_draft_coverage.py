"""A draft model on paper, whose keys and values are token ids: its guess is a hash of what its blocks let it read.

So each guess shows whether the blocks hold the known tokens of its sequence, however the sequence came to them: by the
prefix cache, by a copy of a block, by chunks, by guesses that were right, or after steps without any.
"""

import random
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from pageloom.plan import Admission, BatchPlan
from pageloom.sampling_params import SamplingParams
from pageloom_kernels import AttentionBatch
from worker_svc.batch_inputs import build_batch_inputs
from worker_svc.drafting.draft_coverage import DraftCoverage
from worker_svc.drafting.drafter import DraftRequests, TargetStep
from worker_svc.drafting.model_drafter import ModelDrafter
from worker_svc.slots import SlotTable

VOCAB, BLOCK, NUM_BLOCKS, NUM_SLOTS, LONGEST, BUDGET = 5, 4, 24, 3, 30, 16
CPU = torch.device("cpu")
SAMPLING = SamplingParams(temperature=0.0, seed=0)


def likeliest(token_ids: list[int]) -> int:
    return hash(tuple(token_ids)) % VOCAB


class PaperDraft:
    """In the place of a `Model`; its only cache is [blocks, block size] token ids."""

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_caches: list[Tensor], output_rows: Tensor) -> Tensor:
        assert len(token_ids) <= BUDGET
        kv_caches[0].view(-1)[batch.slot_mapping] = token_ids
        rows = batch.query_start[1:].tolist()
        guesses = {}
        for i, seq_len in enumerate(batch.seq_lens.tolist()):
            read = kv_caches[0][batch.block_tables[i].long()].flatten()[:seq_len]
            guesses[rows[i] - 1] = likeliest(read.tolist())
        return torch.tensor([guesses[row] for row in output_rows.tolist()], dtype=torch.int64)

    def most_likely(self, hidden: Tensor) -> Tensor:
        return hidden


class World:
    """A scheduler and a model of a few lines around the drafter."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kv = torch.full((NUM_BLOCKS, BLOCK), -1)
        self.coverage = DraftCoverage(max_num_seqs=NUM_SLOTS, num_blocks=NUM_BLOCKS, block_size=BLOCK)
        self.drafter = ModelDrafter(
            cast(Any, PaperDraft()), [self.kv], self.coverage, max_num_batched_tokens=BUDGET, device=CPU
        )
        self.table = SlotTable(
            max_num_seqs=NUM_SLOTS, max_num_batched_tokens=1000, max_model_len=LONGEST, block_size=BLOCK,
            num_blocks=NUM_BLOCKS, vocab_size=VOCAB,
        )  # fmt: skip
        self.step = 0
        self.free = list(range(NUM_BLOCKS))
        # What the model has written: the tokens up to the end of each block.
        self.cached: dict[int, list[int]] = {}
        self.blocks: dict[int, list[int]] = {}
        self.num_guesses = 0

    def run(self) -> None:
        released = [slot for slot in self.blocks if self.rng.random() < 0.1 or self.known(slot) >= LONGEST - 6]
        for slot in released:
            self.free += [block for block in self.blocks.pop(slot) if block not in self.cached]
        admissions, copies = [], []
        for slot in set(range(NUM_SLOTS)) - self.blocks.keys() - set(released):
            if self.rng.random() < 0.5:
                admission, copied = self.admit(slot)
                admissions.append(admission)
                copies += copied
        prompts = {
            slot for slot in self.blocks if self.table.num_tokens[slot] - self.table.num_computed_tokens[slot] > 1
        }
        self.step += 1
        plan = self.plan(released, admissions, prompts)
        self.table.apply(plan)
        for admission in admissions:
            self.drafter.bind(admission)
        for source, target in copies:
            self.kv[target] = self.kv[source]
        self.compute(plan)

    def known(self, slot: int) -> int:
        return int(self.table.num_tokens[slot])

    def take_block(self) -> int:
        if not self.free:
            used = {block for blocks in self.blocks.values() for block in blocks}
            evicted = self.rng.choice([block for block in self.cached if block not in used])
            del self.cached[evicted]
            self.free.append(evicted)
        return self.free.pop(self.rng.randrange(len(self.free)))

    def admit(self, slot: int) -> tuple[Admission, list[tuple[int, int]]]:
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 18))]
        blocks: list[int] = []
        copies: list[tuple[int, int]] = []
        computed = 0
        for block, held in self.cached.items():
            if len(held) == computed + BLOCK and tokens[: len(held)] == held and len(held) < len(tokens):
                blocks, computed = [*blocks, block], len(held)
        self.blocks[slot] = blocks
        for block, held in self.cached.items():
            start = len(held) - BLOCK
            if start == computed and held[: start + 2] == tokens[: start + 2] and len(tokens) > start + 2:
                # As a fork takes it over: a copy, whose first two tokens are the same.
                blocks.append(self.take_block())
                if block in self.cached:
                    copies.append((block, blocks[-1]))
                    computed += 2
                break
        while len(blocks) * BLOCK < LONGEST:
            blocks.append(self.take_block())
        return (
            Admission(
                slot=slot, token_ids=tuple(tokens), num_prompt_tokens=len(tokens), num_computed_tokens=computed,
                block_ids=tuple(blocks), sampling=SAMPLING, choice_index=0,
            ),
            copies,
        )  # fmt: skip

    def plan(self, released: list[int], admissions: list[Admission], prompts: set[int]) -> BatchPlan:
        lacking = {slot: int(self.table.num_tokens[slot] - self.table.num_computed_tokens[slot]) for slot in prompts}
        lacking |= {a.slot: len(a.token_ids) - a.num_computed_tokens for a in admissions}
        chunks = {slot: self.rng.randint(1, number) for slot, number in lacking.items()}
        return BatchPlan(
            epoch=1, step=self.step, released_slots=tuple(released), admissions=tuple(admissions),
            chunk_slots=tuple(chunks), chunk_lens=tuple(chunks.values()),
            draft_slots=tuple(a.slot for a in admissions), draft_limits=(4,) * len(admissions),
        )  # fmt: skip

    def compute(self, plan: BatchPlan) -> None:
        runs, _ = self.table.select_runs(plan)
        if not len(runs.slots):
            return
        limits = self.table.num_possible_drafts(runs)
        # Each slot has steps with and without drafts.
        limits = np.where([self.rng.random() < 0.7 for _ in limits], limits, 0)
        which = np.flatnonzero(limits)
        if len(which):
            drafts = self.drafter.propose(DraftRequests(slots=runs.slots[which], limits=limits[which]), self.table)
            self.check(runs.slots[which].tolist(), np.split(drafts.token_ids, np.cumsum(drafts.lens)[:-1]))
            num_drafts = np.zeros_like(runs.lens)
            num_drafts[which] = drafts.lens
            runs = self.table.add_drafts(runs, num_drafts, drafts.token_ids)
        inputs = build_batch_inputs(self.table, runs, CPU)
        self.remember(runs.slots.tolist(), (runs.starts + runs.lens - runs.num_drafts).tolist())
        counts, drawn = [], []
        for slot, num_drafts_of_slot in zip(
            runs.draw_slots.tolist(), runs.num_drafts[runs.draws].tolist(), strict=True
        ):
            num_right = self.rng.randint(0, num_drafts_of_slot)
            known = self.known(slot)
            drawn += [*self.table.token_ids[slot, known : known + num_right].tolist(), self.rng.randrange(VOCAB)]
            counts.append(num_right + 1)
        self.table.advance(runs, runs.draw_slots, np.array(counts, np.int64), np.array(drawn, np.int64))
        self.drafter.observe(TargetStep(runs=runs, inputs=inputs, tapped=None), self.table)

    def check(self, slots: list[int], guesses: list[np.ndarray]) -> None:
        for slot, guess in zip(slots, guesses, strict=True):
            tokens = self.table.token_ids[slot, : self.known(slot)].tolist()
            for token_id in guess.tolist():
                assert token_id == likeliest(tokens)
                tokens.append(token_id)
                self.num_guesses += 1

    def remember(self, slots: list[int], ends: list[int]) -> None:
        """The model's full blocks can be found from the next step on, and hold these tokens until they are evicted."""
        for slot, end in zip(slots, ends, strict=True):
            tokens = self.table.token_ids[slot, :end].tolist()
            for index in range(end // BLOCK):
                held = tokens[: (index + 1) * BLOCK]
                if held not in self.cached.values():
                    self.cached[self.blocks[slot][index]] = held


@pytest.mark.parametrize("seed", range(30))
def test_guesses_come_from_the_known_tokens(seed):
    world = World(seed)
    for _ in range(80):
        world.run()
    assert world.num_guesses > 40


def test_what_is_computed_is_not_computed_again():
    """A prompt of two blocks, guesses, and then another sequence with the same first block."""
    coverage = DraftCoverage(max_num_seqs=2, num_blocks=8, block_size=BLOCK)
    table = SlotTable(
        max_num_seqs=2, max_num_batched_tokens=100, max_model_len=LONGEST, block_size=BLOCK, num_blocks=8,
        vocab_size=VOCAB,
    )  # fmt: skip

    def admit(slot: int, block_ids: tuple[int, ...], computed: int) -> BatchPlan:
        admission = Admission(
            slot=slot, token_ids=(1,) * 7, num_prompt_tokens=7, num_computed_tokens=computed, block_ids=block_ids,
            sampling=SAMPLING, choice_index=0,
        )  # fmt: skip
        return BatchPlan(
            epoch=1, step=slot + 1, admissions=(admission,), chunk_slots=(slot,), chunk_lens=(7 - computed,)
        )

    first, second = np.array([0]), np.array([1])
    plan = admit(0, (5, 2), 0)
    table.apply(plan)
    runs, _ = table.select_runs(plan)
    coverage.written(runs, table)
    assert coverage.starts(first, table).tolist() == [0]
    coverage.computed(first, np.array([0]), np.array([7]), table)
    table.num_tokens[0] = 8
    assert coverage.starts(first, table).tolist() == [7]
    plan = admit(1, (5, 3), 4)
    table.apply(plan)
    runs, _ = table.select_runs(plan)
    coverage.written(runs, table)
    assert coverage.starts(second, table).tolist() == [4]
