"""What a step's result changes: why choices end, single failures, cancels in flight, results that do not fit."""

from dataclasses import replace

import pytest

from pageloom.errors import EngineError
from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs
from pageloom.plan import Failure, StepResult
from scheduler_svc.core import Committed, Scheduler, invariants
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import PAPER_EOS_TOKEN_ID, paper_hello


def started(*, max_num_steps_in_flight: int = 1, **request: object) -> Scheduler:
    """One worker, one request, its first step in flight."""
    scheduler = Scheduler(make_limits(max_num_steps_in_flight=max_num_steps_in_flight))
    scheduler.attach(paper_hello("a"), 1, 9.0)
    scheduler.submit(make_request(**request), 10.0)  # type: ignore[arg-type]
    assert scheduler.plan("a", 11.0) is not None
    return scheduler


def bring(scheduler: Scheduler, token_id: int, *, step: int = 1) -> Committed:
    result = StepResult(epoch=1, step=step, slots=(0,), token_ids=(token_id,))
    committed = scheduler.commit("a", result, 12.0)
    invariants.check(scheduler)
    return committed


def ending(committed: Committed) -> ChoiceFinished | None:
    """How the choice ended, if it did; the token that ended it comes along."""
    if not committed.endings:
        return None
    assert len(committed.tokens.keys) == 1
    return committed.endings[0].event


class TestEnds:
    def test_end_of_sequence(self):
        event = ending(bring(started(ignore_eos=False), PAPER_EOS_TOKEN_ID))
        assert event is not None
        assert (event.reason, event.stop_token_id, event.num_output_tokens) == (
            FinishReason.STOP,
            PAPER_EOS_TOKEN_ID,
            1,
        )

    def test_end_of_sequence_ignored(self):
        assert ending(bring(started(ignore_eos=True), PAPER_EOS_TOKEN_ID)) is None

    def test_stop_token(self):
        event = ending(bring(started(stop_token_ids=(9, 8)), 8))
        assert event is not None
        assert (event.reason, event.stop_token_id) == (FinishReason.STOP, 8)

    def test_a_stop_token_that_is_also_the_last_one_allowed_is_a_stop(self):
        event = ending(bring(started(stop_token_ids=(9,), max_tokens=1), 9))
        assert event is not None
        assert event.reason is FinishReason.STOP

    def test_ignored_end_of_sequence_may_still_be_a_stop_token(self):
        event = ending(bring(started(ignore_eos=True, stop_token_ids=(PAPER_EOS_TOKEN_ID,)), PAPER_EOS_TOKEN_ID))
        assert event is not None
        assert event.reason is FinishReason.STOP

    def test_nothing_stops_before_min_tokens(self):
        scheduler = started(stop_token_ids=(9,), min_tokens=1)
        assert ending(bring(scheduler, 9)) is None
        scheduler.plan("a", 12.0)
        event = ending(bring(scheduler, 9, step=2))
        assert event is not None
        assert (event.reason, event.num_output_tokens) == (FinishReason.STOP, 2)

    def test_the_end_of_a_grammar_is_the_end(self):
        event = ending(bring(started(grammar="{}", ignore_eos=True, min_tokens=5), PAPER_EOS_TOKEN_ID))
        assert event is not None
        assert (event.reason, event.stop_token_id) == (FinishReason.STOP, PAPER_EOS_TOKEN_ID)

    def test_max_tokens(self):
        event = ending(bring(started(max_tokens=1), 5))
        assert event is not None
        assert (event.reason, event.stop_token_id) == (FinishReason.LENGTH, None)

    def test_the_context_is_full(self):
        world = make_world()
        world.submit(make_request(prompt=120, max_tokens=None))
        world.drain()
        assert world.finished("r").reason is FinishReason.LENGTH
        assert world.finished("r").num_output_tokens == 8


class TestTokens:
    def test_they_are_numbered_from_the_first_output_token(self):
        tokens = bring(started(resume=((0, (5, 6)),)), 7).tokens
        assert (tokens.indexes.tolist(), tokens.token_ids.tolist()) == ([2], [7])
        assert tokens.logprobs == []

    def test_the_key_is_what_submit_returned(self):
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        scheduler.submit(make_request("other"), 0.0)
        (key,) = scheduler.submit(make_request("r"), 0.0)
        scheduler.plan("a", 0.0)
        result = StepResult(epoch=1, step=1, slots=(0, 1), token_ids=(5, 6))
        tokens = scheduler.commit("a", result, 0.0).tokens
        assert dict(zip(tokens.keys.tolist(), tokens.token_ids.tolist(), strict=True))[key] == 6

    def test_log_probabilities_go_along(self):
        scheduler = started(logprobs=1)
        logprobs = TokenLogprobs(-0.5, (7,), (-0.5,))
        result = StepResult(epoch=1, step=1, slots=(0,), token_ids=(7,), logprobs={0: (logprobs,)})
        tokens = scheduler.commit("a", result, 12.0).tokens
        assert tokens.logprobs == [logprobs]

    def test_the_facts_of_a_finished_choice(self):
        (end,) = bring(started(prompt=5, max_tokens=1), 7).endings
        assert (end.facts.arrived_at, end.facts.admitted_at, end.facts.first_token_at) == (10.0, 11.0, 12.0)
        assert (end.facts.num_prompt_tokens, end.facts.num_preemptions) == (5, 0)


class TestFailures:
    def test_a_failed_run_ends_its_choice_only(self):
        world = make_world()
        for request_id in ("one", "two", "three"):
            world.submit(make_request(request_id))
        world.plan("a", failing_slots=[1])
        world.commit("a")
        failed = world.finished("two")
        assert (failed.reason, failed.error_message) == (FinishReason.ERROR, "no numbers")
        world.drain()
        assert world.scheduler.stats().num_finished[FinishReason.LENGTH] == 2

    def test_the_field_at_fault_is_told(self):
        failed = StepResult(epoch=1, step=1, failures={0: Failure("it is too ambiguous", "grammar")})
        (ending,) = started().commit("a", failed, 12.0).endings
        assert (ending.event.error_message, ending.event.error_param) == ("it is too ambiguous", "grammar")

    def test_a_chunk_that_draws_nothing_may_fail_too(self):
        world = make_world(make_limits(max_num_batched_tokens=4))
        world.submit(make_request(prompt=20))
        world.plan("a", failing_slots=[0])
        world.commit("a")
        world.drain()

    def test_the_step_after_the_failed_one_is_in_flight_already(self):
        world = make_world(make_limits(max_num_batched_tokens=4, max_num_steps_in_flight=2))
        world.submit(make_request("fails", prompt=6, max_tokens=8))
        world.submit(make_request("goes on", prompt=2))
        world.plan("a", failing_slots=[0])
        world.plan("a")
        world.commit("a")
        assert world.finished("fails").reason is FinishReason.ERROR
        world.commit("a")
        assert world.finished("fails").num_output_tokens == 0
        world.drain()


def two_in_flight(max_num_steps_in_flight: int = 1) -> PaperWorld:
    """Two choices of two requests in each of as many steps as may be."""
    world = make_world(make_limits(max_num_steps_in_flight=max_num_steps_in_flight))
    world.submit(make_request("one"))
    world.submit(make_request("two"))
    for _ in range(max_num_steps_in_flight):
        assert world.plan("a") is not None
    return world


def num_used_blocks(world: PaperWorld) -> int:
    (worker,) = world.scheduler.stats().workers
    return worker.cache.num_blocks - worker.num_free_blocks


class TestCancel:
    def test_waiting(self):
        world = make_world()
        world.submit(make_request())
        world.cancel("r")
        assert world.plan("a") is None
        world.drain()

    def test_between_steps_everything_comes_back_at_once(self):
        world = two_in_flight()
        world.commit("a")
        for request_id in ("one", "two"):
            world.cancel(request_id)
        assert num_used_blocks(world) == 0
        world.drain()

    @pytest.mark.parametrize("depth", [1, 2])
    def test_in_flight_the_event_comes_at_once_and_the_blocks_with_the_last_commit(self, depth: int):
        world = two_in_flight(depth)
        num_blocks = num_used_blocks(world)
        for request_id in ("one", "two"):
            world.cancel(request_id)
        assert world.open_streams == {}
        assert world.scheduler.stats().num_running == 0
        for _ in range(depth):
            assert num_used_blocks(world) == num_blocks
            world.commit("a")
        assert num_used_blocks(world) == 0
        world.drain()

    def test_one_choice_of_several(self):
        world = make_world()
        world.submit(make_request("one", n=2))
        world.step()
        world.plan("a")
        world.cancel("one", (1,))
        assert list(world.open_streams) == [("one", 0)]
        world.commit("a")
        world.drain()

    def test_the_id_is_free_again_while_the_step_is_still_in_flight(self):
        world = two_in_flight()
        world.cancel("one")
        world.scheduler.submit(make_request("one"), world.now)
        assert [ending.request_id for ending in world.scheduler.cancel("one", now=world.now)] == ["one"]
        world.commit("a")
        invariants.check(world.scheduler)

    def test_twice_unknown_or_finished_is_nothing(self):
        world = two_in_flight()
        world.cancel("one", (0, 7))
        assert world.scheduler.cancel("one", (0,), now=world.now) == []
        assert world.scheduler.cancel("nobody", now=world.now) == []
        world.commit("a")
        world.drain()
        assert world.scheduler.cancel("two", now=world.now) == []

    def test_one_that_fails_in_its_last_step_has_one_end(self):
        world = make_world()
        world.submit(make_request())
        world.plan("a", failing_slots=[0])
        world.cancel("r")
        world.commit("a")
        assert world.finished("r").reason is FinishReason.CANCELLED
        world.drain()


class TestResultsThatDoNotFit:
    @pytest.mark.parametrize("change", [{"epoch": 2}, {"step": 2}, {"step": 0}])
    def test_of_another_epoch_or_step_is_ignored(self, change: dict[str, int]):
        scheduler = started()
        result = replace(StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,)), **change)  # type: ignore[arg-type]
        for worker_id in ("a", "nobody"):
            ignored = scheduler.commit(worker_id, result, 0.0)
            assert (len(ignored.tokens.keys), ignored.endings, ignored.facts) == (0, [], None)
        assert len(bring(scheduler, 5).tokens.keys) == 1

    @pytest.mark.parametrize(
        ("result", "says"),
        [
            (StepResult(epoch=1, step=1), "0 tokens for slots"),
            (StepResult(epoch=1, step=1, slots=(1,), token_ids=(5,)), r"slots \[1\]; some were due for each of \[0\]"),
            (StepResult(epoch=1, step=1, slots=(0, 1), token_ids=(5, 5)), r"slots \[0, 1\]"),
            (StepResult(epoch=1, step=1, slots=(0, 0), token_ids=(5, 6)), "2 tokens"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(5, 6)), "2 tokens"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(40,)), "outside the vocabulary of 40"),
            (
                StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,), failures={0: Failure("no")}),
                r"due for each of \[\]",
            ),
            (
                StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,), failures={3: Failure("no")}),
                "not all of them ran",
            ),
        ],
    )
    def test_one_that_does_not_answer_its_plan_changes_nothing(self, result: StepResult, says: str):
        scheduler = started()
        with pytest.raises(EngineError, match=says):
            scheduler.commit("a", result, 0.0)
        assert len(bring(scheduler, 5).tokens.keys) == 1

    def test_results_come_in_the_order_of_their_plans(self):
        scheduler = started(max_num_steps_in_flight=2)
        assert scheduler.plan("a", 11.0) is not None
        with pytest.raises(EngineError, match="step 2 brought its result before step 1"):
            bring(scheduler, 5, step=2)
        assert len(bring(scheduler, 5).tokens.keys) == 1
        assert len(bring(scheduler, 6, step=2).tokens.keys) == 1

    def test_log_probabilities_that_were_asked_for_must_come(self):
        scheduler = started(logprobs=2)
        with pytest.raises(EngineError, match="no log-probabilities"):
            bring(scheduler, 5)
