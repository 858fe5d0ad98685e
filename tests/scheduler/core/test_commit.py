"""What a step's result changes: why choices end, single failures, cancels in flight, results that do not fit."""

from dataclasses import replace

import pytest

from pageloom.errors import EngineError
from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs, TokensGenerated
from pageloom.plan import StepResult
from scheduler_svc.core import Emission, Scheduler, invariants
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import PAPER_EOS_TOKEN_ID, paper_hello


def started(**request: object) -> Scheduler:
    """One worker, one request, its first step in flight."""
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a"), 1)
    scheduler.submit(make_request(**request), 10.0)  # type: ignore[arg-type]
    assert scheduler.plan("a", 11.0) is not None
    return scheduler


def bring(scheduler: Scheduler, token_id: int, *, step: int = 1) -> list[Emission]:
    result = StepResult(epoch=1, step=step, slots=(0,), token_ids=(token_id,))
    emissions = scheduler.commit("a", result, 12.0)
    invariants.check(scheduler)
    return emissions


def ending(emissions: list[Emission]) -> ChoiceFinished | None:
    """The last event if it is terminal; the token that ended the choice comes before it."""
    event = emissions[-1].event
    if not isinstance(event, ChoiceFinished):
        return None
    assert isinstance(emissions[-2].event, TokensGenerated)
    return event


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

    def test_max_tokens(self):
        event = ending(bring(started(max_tokens=1), 5))
        assert event is not None
        assert (event.reason, event.stop_token_id) == (FinishReason.LENGTH, None)

    def test_the_context_is_full(self):
        world = make_world()
        world.submit(make_request(prompt=120, max_tokens=None))
        world.drain()
        finished = world.streams["r", 0].finished
        assert finished is not None
        assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, 8)


class TestEvents:
    def test_tokens_are_numbered_from_the_first_output_token(self):
        scheduler = started(resume=((0, (5, 6)),))
        (emission,) = bring(scheduler, 7)
        assert emission == Emission("r", TokensGenerated(choice_index=0, first_index=2, token_ids=(7,)))

    def test_log_probabilities_go_along(self):
        scheduler = started(logprobs=1)
        logprobs = TokenLogprobs(-0.5, (7,), (-0.5,))
        result = StepResult(epoch=1, step=1, slots=(0,), token_ids=(7,), logprobs={0: logprobs})
        (emission,) = scheduler.commit("a", result, 12.0)
        assert isinstance(emission.event, TokensGenerated)
        assert emission.event.logprobs == (logprobs,)

    def test_the_facts_of_a_finished_choice(self):
        facts = bring(started(prompt=5, max_tokens=1), 7)[-1].facts
        assert facts is not None
        assert (facts.arrived_at, facts.admitted_at, facts.first_token_at) == (10.0, 11.0, 12.0)
        assert (facts.num_prompt_tokens, facts.num_preemptions) == (5, 0)


class TestFailures:
    def test_a_failed_run_ends_its_choice_only(self):
        world = make_world()
        for request_id in ("one", "two", "three"):
            world.submit(make_request(request_id))
        world.plan("a")
        world.commit("a", failing_slots=[1])
        failed = world.streams["two", 0].finished
        assert failed is not None
        assert (failed.reason, failed.error_message) == (FinishReason.ERROR, "no numbers")
        world.drain()
        assert world.scheduler.stats().num_finished[FinishReason.LENGTH] == 2

    def test_a_chunk_that_draws_nothing_may_fail_too(self):
        world = make_world(make_limits(max_num_batched_tokens=4))
        world.submit(make_request(prompt=20))
        world.plan("a")
        world.commit("a", failing_slots=[0])
        world.drain()


def two_in_flight() -> PaperWorld:
    world = make_world()
    world.submit(make_request("one", n=2))
    world.plan("a")
    return world


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
        world.cancel("one")
        worker = world.scheduler.stats().workers[0]
        assert worker.num_free_blocks == worker.cache.num_blocks
        world.drain()

    def test_in_flight_the_event_comes_at_once_and_the_blocks_with_the_commit(self):
        world = two_in_flight()
        num_free_blocks = world.scheduler.stats().workers[0].num_free_blocks
        world.cancel("one")
        assert world.open_streams == {}
        assert world.scheduler.stats().workers[0].num_free_blocks == num_free_blocks
        assert world.scheduler.stats().num_running == 0
        world.commit("a")
        worker = world.scheduler.stats().workers[0]
        assert worker.num_free_blocks == worker.cache.num_blocks
        world.drain()

    def test_one_choice_of_several(self):
        world = two_in_flight()
        world.cancel("one", (1,))
        assert list(world.open_streams) == [("one", 0)]
        world.commit("a")
        world.drain()

    def test_the_id_is_free_again_while_the_step_is_still_in_flight(self):
        world = two_in_flight()
        world.cancel("one")
        world.scheduler.submit(make_request("one"), 0.0)
        assert [emission.request_id for emission in world.scheduler.cancel("one")] == ["one"]
        world.commit("a")
        invariants.check(world.scheduler)

    def test_twice_unknown_or_finished_is_nothing(self):
        world = two_in_flight()
        world.cancel("one", (0, 7))
        assert world.scheduler.cancel("one", (0,)) == []
        assert world.scheduler.cancel("nobody") == []
        world.commit("a")
        world.drain()
        assert world.scheduler.cancel("one") == []

    def test_one_that_fails_in_its_last_step_has_one_end(self):
        world = two_in_flight()
        world.cancel("one", (0,))
        world.commit("a", failing_slots=[0])
        finished = world.streams["one", 0].finished
        assert finished is not None
        assert finished.reason is FinishReason.CANCELLED
        world.drain()


class TestResultsThatDoNotFit:
    @pytest.mark.parametrize("change", [{"epoch": 2}, {"step": 2}, {"step": 0}])
    def test_of_another_epoch_or_step_is_ignored(self, change: dict[str, int]):
        scheduler = started()
        result = replace(StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,)), **change)  # type: ignore[arg-type]
        assert scheduler.commit("a", result, 0.0) == []
        assert scheduler.commit("nobody", result, 0.0) == []
        assert len(bring(scheduler, 5)) == 1

    @pytest.mark.parametrize(
        ("result", "says"),
        [
            (StepResult(epoch=1, step=1), "0 tokens for slots"),
            (StepResult(epoch=1, step=1, slots=(1,), token_ids=(5,)), r"slots \[1\]; one was due for each of \[0\]"),
            (StepResult(epoch=1, step=1, slots=(0, 1), token_ids=(5, 5)), r"slots \[0, 1\]"),
            (StepResult(epoch=1, step=1, slots=(0, 0), token_ids=(5, 6)), "2 tokens"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(5, 6)), "2 tokens"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(40,)), "outside the vocabulary of 40"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,), failures={0: "no"}), r"due for each of \[\]"),
            (StepResult(epoch=1, step=1, slots=(0,), token_ids=(5,), failures={3: "no"}), "not all of them ran"),
        ],
    )
    def test_one_that_does_not_answer_its_plan_changes_nothing(self, result: StepResult, says: str):
        scheduler = started()
        with pytest.raises(EngineError, match=says):
            scheduler.commit("a", result, 0.0)
        assert len(bring(scheduler, 5)) == 1

    def test_log_probabilities_that_were_asked_for_must_come(self):
        scheduler = started(logprobs=2)
        with pytest.raises(EngineError, match="no log-probabilities"):
            bring(scheduler, 5)
