"""How many guesses are run: more where they are right and rows are cheap, none where they do not pay."""

from __future__ import annotations

import numpy as np
import pytest

from worker_svc.drafting.draft_lengths import DraftLengths
from worker_svc.drafting.step_costs import StepCosts, measure_step_costs

SLOTS = np.array([0, 1, 2])


def lengths(row_s: float, base_s: float = 1.0) -> DraftLengths:
    """Where a step takes a base, and so much for each row."""
    sizes = np.array([1, 64])
    return DraftLengths(StepCosts(sizes, base_s + row_s * sizes), max_num_seqs=4, max_num_draft_tokens=7)


def outcome(chosen: DraftLengths, num_drafts: int, num_accepted: int, slot: int = 0) -> None:
    chosen.record(np.array([slot]), np.array([num_drafts]), np.array([num_accepted]))


def useful(chosen: DraftLengths, slot: int = 0, num_draws: int = 1) -> int:
    return int(chosen.useful(chosen.acceptance[[slot]], num_draws, num_draws)[0])


def test_cheap_rows_are_used_and_dear_ones_are_not():
    assert useful(lengths(0.001)) == 7
    assert 1 <= useful(lengths(0.1)) <= 3
    assert useful(lengths(1.0)) == 0


def test_acceptance_decides_how_far_ahead():
    chosen = lengths(0.15)
    before = useful(chosen)
    for _ in range(10):
        outcome(chosen, 3, 3)
    assert useful(chosen) > before
    for _ in range(20):
        outcome(chosen, 3, 0)
    assert useful(chosen) == 0
    assert useful(chosen, slot=1) >= 1, "the others have their own"
    for _ in range(60):
        outcome(chosen, 0, 0)
    assert useful(chosen) >= 1, "it gets another try"


def test_outputs_begin_with_what_earlier_ones_earned():
    chosen = lengths(0.15)
    for slot in (0, 1, 2) * 30:
        outcome(chosen, 2, 0, slot)
    chosen.bind(3)
    assert 0.25 < chosen.acceptance[3] < 0.4
    for slot in (0, 1, 2) * 30:
        outcome(chosen, 7, 7, slot)
    chosen.bind(3)
    assert chosen.acceptance[3] == pytest.approx(0.5)


def test_a_large_batch_has_none():
    """Where each row takes as long as any other, as in a batch that keeps the processor busy."""
    chosen = lengths(0.1, base_s=1.0)
    assert chosen.most_useful(1, 1) == 7
    assert chosen.most_useful(1000, 1000) == 0
    assert useful(chosen, num_draws=1000) == 0


def test_those_that_are_right_most_often_are_run_first():
    chosen = lengths(0.25)
    for _ in range(10):
        outcome(chosen, 4, 4, slot=1)
        outcome(chosen, 4, 0, slot=2)
    lens = chosen.chosen(SLOTS, np.array([7, 7, 7]), 3, 3)
    assert lens[1] > lens[0] >= lens[2] == 0
    # No more than there are.
    assert chosen.chosen(SLOTS, np.array([0, 2, 0]), 3, 3).tolist() == [0, 2, 0]


def test_steps_with_drafts_that_take_longer_than_they_should_are_avoided_for_a_while():
    chosen = lengths(0.1)
    assert useful(chosen) > 0
    for _ in range(60):
        chosen.record_step(1.1, 1, 0)
        chosen.record_step(3.0, 1, 2)
    assert useful(chosen) == 0
    for _ in range(300):
        chosen.record_step(1.1, 1, 0)
    assert useful(chosen) > 0


def test_one_slow_guess_is_forgotten():
    chosen = lengths(0.1)
    chosen.record_guess(20.0, 1)
    assert useful(chosen) == 0
    for _ in range(600):
        chosen.record_step(1.1, 1, 0)
    assert useful(chosen) > 0


def test_costs_between_and_beyond_what_was_measured():
    costs = StepCosts(np.array([1, 2, 4]), np.array([1.0, 0.9, 2.0]))
    assert costs.seconds(np.array([1, 2, 3, 4, 8])).tolist() == pytest.approx([1.0, 1.0, 1.5, 2.0, 4.0])


def test_a_step_is_run_once_for_each_size_in_each_round():
    sizes: list[int] = []
    costs = measure_step_costs(sizes.append, 5)
    assert sizes == [1, 2, 3, 4, 5] * 5
    assert (costs.seconds(np.array([1, 5])) >= 0).all()
