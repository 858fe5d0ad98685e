"""Log-probabilities of a prompt: every token of it once, in order, whatever is cached, preempted or lost meanwhile.

The paper world compares each with what the prompt's own KV gives, so most tests here are about when they come.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pageloom.errors import EngineError
from pageloom.plan import BatchPlan, Failure, StepResult
from scheduler_svc.core import Scheduler
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.support.paper_model import PaperWorker, paper_hello

PROMPT = tuple(range(2, 24))


def computed_at_start(plan: BatchPlan | None) -> list[int]:
    assert plan is not None
    return [admission.num_computed_tokens for admission in plan.admissions]


def scored_at_start(plan: BatchPlan | None) -> list[int]:
    assert plan is not None
    return [admission.first_scored_token for admission in plan.admissions]


@pytest.mark.parametrize("max_num_batched_tokens", [1, 7, 64])
@pytest.mark.parametrize("max_num_steps_in_flight", [1, 2])
def test_in_chunks(max_num_batched_tokens: int, max_num_steps_in_flight: int):
    limits = make_limits(max_num_batched_tokens=max_num_batched_tokens, max_num_steps_in_flight=max_num_steps_in_flight)
    world = make_world(limits)
    for index in range(3):
        world.submit(make_request(f"r{index}", prompt=PROMPT[: 22 - 5 * index], prompt_logprobs=index))
    world.drain()
    streams = [world.streams[f"r{index}", 0] for index in range(3)]
    assert [stream.num_scored_tokens for stream in streams] == [22, 17, 12]
    world.replay()


def test_a_prompt_of_one_token_has_none():
    world = make_world()
    world.submit(make_request(prompt=(5,), prompt_logprobs=2))
    assert scored_at_start(world.step()) == [0]
    world.drain()


def test_what_is_cached_is_computed_again_and_shared_with_others():
    world = make_world()
    world.submit(make_request("first", prompt=PROMPT))
    world.drain()
    world.submit(make_request("scored", prompt=PROMPT, prompt_logprobs=1))
    assert computed_at_start(world.step()) == [0]
    world.submit(make_request("later", prompt=PROMPT))
    assert computed_at_start(world.step()) == [20]
    world.drain()
    assert world.finished("scored").num_cached_tokens == 0


def test_its_own_blocks_are_registered():
    world = make_world()
    world.submit(make_request("scored", prompt=PROMPT, prompt_logprobs=0))
    world.drain()
    world.submit(make_request("later", prompt=PROMPT))
    assert computed_at_start(world.step()) == [20]
    world.drain()


def test_it_does_not_wait_for_a_prefix_that_it_has_to_compute_itself():
    world = make_world(make_limits(max_num_batched_tokens=16))
    world.submit(make_request("one", prompt=PROMPT))
    world.step()
    world.submit(make_request("scored", prompt=PROMPT, prompt_logprobs=0))
    world.submit(make_request("waits", prompt=PROMPT))
    assert world.admitted(world.step()) == ["scored"]
    world.drain()


def test_only_the_first_of_several_choices_scores():
    world = make_world()
    world.submit(make_request(prompt=PROMPT, prompt_logprobs=1, n=3))
    first = world.step()
    assert (computed_at_start(first), scored_at_start(first)) == ([0], [1])
    second = world.step()
    assert (computed_at_start(second), scored_at_start(second)) == ([21, 21], [0, 0])
    world.drain()


def test_who_resumes_from_tokens_has_them():
    world = make_world()
    output = world_output(PROMPT)
    world.submit(make_request("some", prompt=PROMPT, prompt_logprobs=1, resume=((0, output[:2]),)))
    world.submit(make_request("none", prompt=PROMPT[1:], prompt_logprobs=1, resume=((0, ()),)))
    assert scored_at_start(world.step()) == [0, 1]
    world.drain()


def world_output(prompt: tuple[int, ...]) -> tuple[int, ...]:
    world = make_world()
    world.submit(make_request(prompt=prompt))
    world.drain()
    return tuple(world.streams["r", 0].token_ids)


def test_a_lost_worker_leaves_no_gap_and_no_repeat():
    world = make_world(make_limits(max_num_batched_tokens=8, max_num_steps_in_flight=2))
    world.submit(make_request(prompt=PROMPT, prompt_logprobs=2))
    world.plan("a")
    world.plan("a")
    world.commit("a")
    assert world.streams["r", 0].num_scored_tokens == 9
    # The second step's scores are lost on the way.
    world.lose("a")
    world.attach(paper_hello("b", block_size=4))
    plan = world.plan("b")
    assert (computed_at_start(plan), scored_at_start(plan)) == ([0], [9])
    world.drain()
    assert world.streams["r", 0].num_scored_tokens == 22
    world.replay()


def test_after_a_preemption_it_starts_from_its_cached_blocks():
    """Up to the token before the first that is not scored; `commit` proves that the rest is right."""
    world = make_world(make_limits(max_num_batched_tokens=9), block_size=4, num_blocks=9)
    world.submit(make_request("one", prompt=7, max_tokens=26))
    world.step()
    world.submit(make_request("scored", prompt=PROMPT, max_tokens=4, prompt_logprobs=0))
    starts = []
    while world.open_streams:
        plan = world.step()
        starts += [
            (admission.num_computed_tokens, admission.first_scored_token)
            for admission in (plan.admissions if plan else ())
        ]
    assert world.scheduler.stats().num_preemptions >= 1
    (first, again) = starts
    assert first == (0, 1)
    assert 0 < again[0] < again[1] or again[1] == 0
    world.replay()


class TestResultsThatDoNotFit:
    """The worker is broken: nothing is changed, and the driver gives it up."""

    def start(self) -> tuple[Scheduler, StepResult]:
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        scheduler.submit(make_request(prompt=PROMPT, prompt_logprobs=2), 0.0)
        plan = scheduler.plan("a", 0.0)
        assert plan is not None
        worker = PaperWorker(paper_hello("a"), 1)
        return scheduler, worker.execute(worker.apply(plan))

    def refused(self, scheduler: Scheduler, result: StepResult, message: str) -> None:
        with pytest.raises(EngineError, match=message):
            scheduler.commit("a", result, 0.0)

    def test_missing_short_and_misplaced(self):
        scheduler, result = self.start()
        scores = result.prompt_logprobs[0]
        short = replace(scores, logprobs=scores.logprobs[1:], ranks=scores.ranks[1:])
        for wrong in ({}, {0: short}, {0: replace(scores, first_index=2)}, {1: scores}):
            self.refused(scheduler, replace(result, prompt_logprobs=wrong), "prompt tokens 1 to 21 of slot 0")
        assert scheduler.commit("a", result, 0.0).prompt_logprobs[0].logprobs == scores

    def test_too_few_alternatives(self):
        scheduler, result = self.start()
        scores = replace(result.prompt_logprobs[0], top_token_ids=(), top_logprobs=())
        self.refused(scheduler, replace(result, prompt_logprobs={0: scores}), "2 likeliest tokens")

    def test_a_failed_run_needs_none(self):
        scheduler, result = self.start()
        failed = StepResult(epoch=1, step=1, failures={0: Failure("no numbers")})
        committed = scheduler.commit("a", failed, 0.0)
        assert (committed.prompt_logprobs, len(committed.endings)) == ((), 1)
        assert result.prompt_logprobs

    def test_nobody_waits_for_those_of_a_cancelled_choice(self):
        scheduler, result = self.start()
        scheduler.cancel("r", now=0.0)
        assert scheduler.commit("a", result, 0.0).prompt_logprobs == ()
