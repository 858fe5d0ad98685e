"""The worker's mirror of the slots: the plan's rules of what runs, and plans that contradict it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from pageloom.plan import Admission, BatchPlan, Failure
from pageloom.sampling_params import SamplingParams
from worker_svc.batch_inputs import build_batch_inputs
from worker_svc.slots import PlanError, SlotTable

SAMPLING = SamplingParams(temperature=0.0, seed=0, max_tokens=10)


def make_table() -> SlotTable:
    return SlotTable(
        max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, block_size=16, num_blocks=20, vocab_size=100
    )


def admit(slot: int, num_tokens: int, block_ids: tuple[int, ...], computed: int = 0) -> Admission:
    return Admission(
        slot=slot,
        token_ids=tuple(range(10 * slot, 10 * slot + num_tokens)),
        num_prompt_tokens=num_tokens,
        num_computed_tokens=computed,
        block_ids=block_ids,
        sampling=SAMPLING,
    )


class Plans:
    """Numbers the plans of one epoch, applies them to a table, and lets every draw yield token 99."""

    def __init__(self) -> None:
        self.table = make_table()
        self.step = 0

    def run(self, failing: int | None = None, **plan) -> tuple[dict[int, int], set[int]]:
        """What ran, slot -> tokens, and which slots drew: all that reached their end but `failing`."""
        self.step += 1
        batch = BatchPlan(epoch=1, step=self.step, **plan)
        self.table.apply(batch)
        runs, failures = self.table.select_runs(batch)
        assert failures == {}
        drawn = runs.draw_slots[runs.draw_slots != failing]
        self.table.advance(runs, drawn, np.ones_like(drawn), np.full(len(drawn), 99))
        assert sorted(runs.lens == 1, reverse=True) == (runs.lens == 1).tolist(), "one-token runs come first"
        return dict(zip(runs.slots.tolist(), runs.lens.tolist(), strict=True)), set(drawn.tolist())


def test_a_prompt_in_chunks_then_free_decodes():
    plans = Plans()
    first: dict[str, Any] = {"admissions": (admit(2, 20, (5, 6)),), "chunk_slots": (2,), "chunk_lens": (12,)}
    assert plans.run(**first) == ({2: 12}, set())
    assert plans.run() == ({}, set()), "a prompt runs only when the plan says so"
    assert plans.run(chunk_slots=(2,), chunk_lens=(8,)) == ({2: 8}, {2})
    assert plans.run() == ({2: 1}, {2})
    assert plans.run(held_slots=(2,)) == ({}, set())
    assert plans.run() == ({2: 1}, {2}), "holding a slot does not stop it for good"
    assert plans.table.num_tokens[2] == 23
    assert plans.table.num_computed_tokens[2] == 22


def test_chunks_run_beside_decodes():
    plans = Plans()
    plans.run(admissions=(admit(0, 4, (1,)), admit(3, 5, (2,))), chunk_slots=(0, 3), chunk_lens=(4, 5))
    ran, drew = plans.run(admissions=(admit(1, 30, (3, 4)),), chunk_slots=(1,), chunk_lens=(10,))
    assert ran == {0: 1, 3: 1, 1: 10}
    assert drew == {0, 3}


def test_resumed_choice_with_computed_tokens():
    plans = Plans()
    resumed = dataclasses.replace(admit(1, 20, (7, 8), computed=16), num_prompt_tokens=5)
    assert plans.run(admissions=(resumed,), chunk_slots=(1,), chunk_lens=(4,)) == ({1: 4}, {1})
    assert plans.table.num_prompt_tokens[1] == 5
    assert plans.table.token_ids[1, :21].tolist() == [*range(10, 30), 99]


def test_release_and_bind_again_in_one_plan():
    plans = Plans()
    plans.run(admissions=(admit(0, 4, (1,)),), chunk_slots=(0,), chunk_lens=(4,))
    again: dict[str, Any] = {"released_slots": (0,), "admissions": (admit(0, 2, (9,)),)}
    assert plans.run(**again, chunk_slots=(0,), chunk_lens=(1,)) == ({0: 1}, set())
    assert plans.table.num_tokens[0] == 2
    assert plans.table.block_tables[0, 0] == 9


def test_a_failed_draw_does_not_continue():
    plans = Plans()
    plans.run(admissions=(admit(0, 4, (1,)), admit(1, 4, (2,))), chunk_slots=(0, 1), chunk_lens=(4, 4))
    assert plans.run(failing=1) == ({0: 1, 1: 1}, {0})
    assert plans.run() == ({0: 1}, {0})


def test_growth_appends_blocks_in_order():
    plans = Plans()
    plans.run(admissions=(admit(0, 16, (1,)), admit(1, 16, (2,))), chunk_slots=(0, 1), chunk_lens=(16, 16))
    ran, _ = plans.run(grown_slots=(1, 0), grown_counts=(2, 1), grown_block_ids=(11, 12, 13))
    assert ran == {0: 1, 1: 1}
    assert plans.table.block_tables[1, :3].tolist() == [2, 11, 12]
    assert plans.table.block_tables[0, :2].tolist() == [1, 13]


@pytest.mark.parametrize("reset", [{"snapshot": True}, {"epoch": 2}])
def test_snapshot_or_new_epoch_forgets_all_slots(reset):
    plans = Plans()
    plans.run(admissions=(admit(0, 4, (1,)), admit(1, 4, (2,))), chunk_slots=(0, 1), chunk_lens=(4, 4))
    plan = BatchPlan(**{"epoch": 1, "step": 2, "admissions": (admit(1, 6, (3,)),), **reset})
    plans.table.apply(plan)
    runs, _ = plans.table.select_runs(plan)
    assert len(runs.slots) == 0
    assert plans.table.num_tokens[1] == 6


def test_tokens_outside_the_vocabulary_fail_their_slot_only():
    table = make_table()
    bad = dataclasses.replace(admit(0, 3, (1,)), token_ids=(5, 100, 6))
    plan = BatchPlan(epoch=1, step=1, admissions=(bad, admit(1, 3, (2,))), chunk_slots=(0, 1), chunk_lens=(3, 3))
    assert [admission.slot for admission in table.apply(plan)] == [1]
    runs, failures = table.select_runs(plan)
    assert runs.slots.tolist() == [1]
    assert failures == {0: Failure("a token id is outside the model's vocabulary of 100")}


def take(table: SlotTable, plan: BatchPlan) -> None:
    table.apply(plan)
    table.select_runs(plan)


ONE_BOUND = {"admissions": (admit(0, 20, (1, 2)),)}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"released_slots": (1,)}, "slot 1 is released but not bound"),
        ({}, {"chunk_slots": (7,), "chunk_lens": (1,)}, "slot 7 is run but not bound"),
        ({}, {"held_slots": (-1,)}, "slot -1 is held but not bound"),
        ({}, {"admissions": (admit(4, 1, (1,)),)}, "slots 0 to 3"),
        ({}, {"admissions": (admit(0, 65, (1,)),)}, "65 tokens"),
        ({}, {"admissions": (admit(0, 5, (1,), computed=5),)}, "not computed"),
        ({}, {"admissions": (dataclasses.replace(admit(0, 5, (1,)), num_prompt_tokens=6),)}, "6 of them prompt"),
        ({}, {"admissions": (admit(0, 5, (20,)),)}, "not one of 0 to 19"),
        ({}, {"admissions": (admit(0, 5, (1, 2, 3, 4, 5)),)}, "gets 5 blocks"),
        (ONE_BOUND, {"admissions": (admit(0, 5, (3,)),)}, "while it is bound"),
        (ONE_BOUND, {"chunk_slots": (0, 0), "chunk_lens": (1, 1)}, "twice"),
        (ONE_BOUND, {"chunk_slots": (0,), "chunk_lens": (0,)}, "at least 1"),
        (ONE_BOUND, {"chunk_slots": (0,), "chunk_lens": ()}, "one length"),
        (ONE_BOUND, {"chunk_slots": (0,), "chunk_lens": (21,)}, "knows 20 tokens"),
        (ONE_BOUND, {"grown_slots": (0,), "grown_counts": (2,), "grown_block_ids": (3,)}, "do not fit each other"),
        ({"admissions": (admit(0, 17, (1,)),)}, {"chunk_slots": (0,), "chunk_lens": (17,)}, "1 blocks of 16"),
        ({"admissions": (admit(0, 64, (1, 2, 3, 4), computed=60),)},
         {"chunk_slots": (0,), "chunk_lens": (4,)}, "the context is 64"),
        ({"admissions": (admit(0, 40, (1, 2, 3)),)}, {"chunk_slots": (0,), "chunk_lens": (33,)}, "takes 32 in a step"),
    ],
)  # fmt: skip
def test_plans_that_contradict_the_slots(first, second, message):
    table = make_table()
    table.apply(BatchPlan(epoch=1, step=1, **first))
    plan = BatchPlan(epoch=1, step=2, **second)
    with pytest.raises(PlanError, match=message):
        take(table, plan)


def test_batch_inputs_of_a_mixed_step():
    plans = Plans()
    plans.run(admissions=(admit(0, 17, (4, 3)), admit(1, 20, (6, 7))), chunk_slots=(0, 1), chunk_lens=(17, 13))
    plan = BatchPlan(epoch=1, step=2, admissions=(admit(2, 40, (9, 8, 1)),), chunk_slots=(1, 2), chunk_lens=(7, 18))
    plans.table.apply(plan)
    runs, _ = plans.table.select_runs(plan)
    inputs = build_batch_inputs(plans.table, runs, torch.device("cpu"))
    attention = inputs.attention
    assert runs.slots.tolist() == [0, 1, 2]
    assert inputs.token_ids.tolist() == [99, *range(23, 30), *range(20, 38)]
    assert attention.positions.tolist() == [17, *range(13, 20), *range(18)]
    assert attention.slot_mapping.tolist() == [
        3 * 16 + 1, *range(6 * 16 + 13, 6 * 16 + 16), *range(7 * 16, 7 * 16 + 4), *range(9 * 16, 9 * 16 + 16),
        8 * 16, 8 * 16 + 1,
    ]  # fmt: skip
    assert attention.query_start.tolist() == [0, 1, 8, 26]
    assert attention.seq_lens.tolist() == [18, 20, 18]
    assert attention.block_tables[:, :2].tolist() == [[4, 3], [6, 7], [9, 8]]
    assert (attention.num_decodes, attention.max_query_len, attention.max_seq_len) == (1, 18, 20)
    assert inputs.output_rows.tolist() == [0, 7]
    assert runs.draw_slots.tolist() == [0, 1]
