"""How many guessed tokens a slot may run, what becomes of them, and what they may not do. The random histories have
them too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pageloom.errors import EngineError
from pageloom.outputs import FinishReason
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from scheduler_svc.core import Committed, Scheduler
from tests.scheduler.core.builders import make_limits, make_request
from tests.support.paper_model import paper_hello


def guessing_hello(**settings: Any) -> WorkerHello:
    return paper_hello("a", **{"max_num_draft_tokens": 4, **settings})


def started(hello: WorkerHello | None = None, *, depth: int = 1, num_requests: int = 1, **asked) -> Scheduler:
    """Requests whose prompts have run, so that they continue with the next plan."""
    scheduler = Scheduler(make_limits(max_num_steps_in_flight=depth))
    scheduler.attach(hello or guessing_hello(), 1, 0.0)
    for index in range(num_requests):
        scheduler.submit(make_request(f"r{index}", **asked), 0.0)
    assert scheduler.plan("a", 0.0) is not None
    bring(scheduler, [[7]] * num_requests)
    return scheduler


def plan(scheduler: Scheduler) -> BatchPlan:
    planned = scheduler.plan("a", 0.0)
    assert planned is not None
    return planned


def bring(scheduler: Scheduler, tokens: list[list[int]], *, num_drafts: int = 0, **fields) -> Committed:
    """The result of the oldest step: what slots 0, 1, ... drew, each with so many drafts."""
    step = scheduler.groups["a"].in_flight[0].plan.step
    result = StepResult(
        epoch=1,
        step=step,
        slots=tuple(range(len(tokens))),
        token_ids=tuple(token_id for drawn in tokens for token_id in drawn),
        token_counts=tuple(map(len, tokens)),
        draft_counts=(num_drafts,) * len(tokens),
    )
    return scheduler.commit("a", replace(result, **fields), 0.0)


def limits_of(planned: BatchPlan) -> dict[int, int]:
    return dict(zip(planned.draft_slots, planned.draft_limits, strict=True))


class TestLimits:
    def test_they_are_told_when_they_change(self):
        scheduler = started()
        assert limits_of(plan(scheduler)) == {0: 4}
        bring(scheduler, [[8, 9]], num_drafts=4)
        assert limits_of(plan(scheduler)) == {}

    def test_a_worker_that_guesses_nothing_has_none(self):
        scheduler = started(paper_hello("a"))
        assert limits_of(plan(scheduler)) == {}

    def test_the_worker_says_how_many_are_worth_it(self):
        scheduler = started()
        plan(scheduler)
        bring(scheduler, [[8]], num_drafts=1, draft_limit=0)
        assert limits_of(plan(scheduler)) == {0: 0}
        bring(scheduler, [[9]], draft_limit=2)
        assert limits_of(plan(scheduler)) == {0: 2}
        bring(scheduler, [[9]], draft_limit=99)
        assert limits_of(plan(scheduler)) == {0: 4}

    def test_all_together_take_at_most_half_a_step(self):
        scheduler = started(guessing_hello(max_num_batched_tokens=20), num_requests=4)
        assert limits_of(plan(scheduler)) == {0: 2, 1: 2, 2: 2, 3: 2}

    def test_who_waits_for_each_token_has_none(self):
        assert limits_of(plan(started(wait_for_tokens=True))) == {}


class TestTokens:
    def test_all_that_were_drawn_are_taken_in_order(self):
        scheduler = started(logprobs=None)
        plan(scheduler)
        tokens = bring(scheduler, [[8, 9, 10]], num_drafts=4).tokens
        assert (tokens.indexes.tolist(), tokens.token_ids.tolist()) == ([1, 2, 3], [8, 9, 10])
        assert scheduler.stats().num_generation_tokens == 4

    def test_what_comes_after_the_end_is_dropped(self):
        scheduler = started(stop_token_ids=(9,))
        plan(scheduler)
        committed = bring(scheduler, [[8, 9, 10, 11]], num_drafts=4)
        assert committed.tokens.token_ids.tolist() == [8, 9]
        (ending,) = committed.endings
        assert (ending.event.reason, ending.event.stop_token_id) == (FinishReason.STOP, 9)
        assert ending.event.num_output_tokens == 3

    def test_min_tokens_counts_those_before_it_in_the_step(self):
        scheduler = started(stop_token_ids=(9,), min_tokens=3)
        plan(scheduler)
        committed = bring(scheduler, [[9, 8, 9, 10]], num_drafts=4)
        assert committed.tokens.token_ids.tolist() == [9, 8, 9]

    def test_a_step_ahead_counts_on_no_draft(self):
        """What it may need is there: blocks for all drafts of both steps; and one that comes to its end is over."""
        scheduler = started(guessing_hello(block_size=4), depth=2, max_tokens=6)
        plan(scheduler)
        plan(scheduler)
        group = scheduler.groups["a"]
        assert group.columns.capacity[0] == 12, "prompt and answer have 11 tokens, and the last needs no place"
        committed = bring(scheduler, [[8, 9, 10, 11, 12]], num_drafts=4)
        assert [ending.event.reason for ending in committed.endings] == [FinishReason.LENGTH]
        # The worker does not run it any more.
        assert bring(scheduler, []).endings == []
        assert scheduler.stats().workers[0].num_free_blocks == 64


class TestBlocks:
    def test_they_are_taken_for_drafts_only_if_there_are_enough(self):
        """Each of the two leaves a block for the other's growth and its own."""
        scheduler = started(guessing_hello(block_size=2, num_blocks=8), num_requests=2, prompt=4, max_tokens=4)
        planned = plan(scheduler)
        # Two blocks each are full, each needs one for the token that it runs, and two of the eight are left.
        assert planned.grown_slots == (0, 1)
        assert planned.grown_counts == (1, 1)
        assert limits_of(planned) == {0: 4, 1: 4}

    def test_nobody_gives_way_for_what_may_be_wrong(self):
        """Each has a place for one more token, which it needs only if its draft in flight is right."""
        hello = guessing_hello(block_size=2, num_blocks=6)
        scheduler = started(hello, depth=2, num_requests=2, prompt=4, max_tokens=6)
        assert plan(scheduler).grown_counts == (1, 1)
        assert scheduler.plan("a", 0.0) is None
        bring(scheduler, [[8], [8]], num_drafts=1)
        planned = plan(scheduler)
        assert (planned.released_slots, planned.held_slots, planned.grown_slots) == ((), (), ())
        assert scheduler.stats().num_preemptions == 0

    def test_those_of_wrong_drafts_serve_what_comes_instead(self):
        scheduler = started(guessing_hello(block_size=2), prompt=4, max_tokens=20)
        # The token that it runs, and four drafts.
        assert plan(scheduler).grown_counts == (3,)
        bring(scheduler, [[8]], num_drafts=4)
        assert plan(scheduler).grown_counts == ()
        bring(scheduler, [[8]], num_drafts=4)
        assert plan(scheduler).grown_counts == (1,)

    def test_only_accepted_tokens_are_cached(self):
        scheduler = started(guessing_hello(block_size=4), prompt=4, max_tokens=20)
        plan(scheduler)
        bring(scheduler, [[8, 9]], num_drafts=4)
        assert scheduler.stats().workers[0].num_cached_blocks == 1
        plan(scheduler)
        bring(scheduler, [[10, 11, 12]], num_drafts=4)
        assert scheduler.stats().workers[0].num_cached_blocks == 2
        scheduler.submit(make_request("again", prompt=(*make_request("r0", 4).prompt_token_ids, 7, 8, 9, 10, 3)), 0.0)
        (admission,) = plan(scheduler).admissions
        assert admission.num_computed_tokens == 8


@pytest.mark.parametrize(
    ("tokens", "num_drafts", "fields", "says"),
    [
        ([[8, 9, 10]], 1, {}, r"more or fewer tokens than could be drawn by slots \[0\]"),
        ([[8]], 5, {}, "more or fewer tokens"),
        ([[]], 2, {}, "more or fewer tokens"),
        ([[8, 9, 10, 11, 12]], 4, {}, "more or fewer tokens"),
        ([[8, 9]], 4, {"token_counts": (1, 1)}, "counts that do not fit"),
        ([[8, 9]], 4, {"token_counts": (3,)}, "counts that do not fit"),
        ([[8, 9]], 4, {"token_counts": ()}, "2 tokens for 1 slots, and no counts"),
        ([[8, 40]], 4, {}, "outside the vocabulary"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(tokens, num_drafts, fields, says):
    scheduler = started(max_tokens=5)
    plan(scheduler)
    with pytest.raises(EngineError, match=says):
        bring(scheduler, tokens, num_drafts=num_drafts, **fields)
    assert len(bring(scheduler, [[8, 9, 10, 11]], num_drafts=4).tokens.keys) == 4
