"""When the next plan is due, and what that makes of steps that differ from those before."""

from scheduler_svc.core import StepFacts
from scheduler_svc.pace import Pace


def step(*, num_decodes: int, num_prompt_tokens: int = 0) -> StepFacts:
    return StepFacts(
        num_seqs=num_decodes + (num_prompt_tokens > 0),
        num_tokens=num_decodes + num_prompt_tokens,
        num_decode_seqs=num_decodes,
        num_admitted=0,
        num_preempted=0,
    )


def test_nothing_is_known_at_first_so_the_plan_is_due_at_once():
    assert Pace().delay_s(step(num_decodes=4)) == 0
    assert Pace().delay_s(step(num_decodes=0, num_prompt_tokens=100)) == 0


def test_after_most_of_what_a_step_takes():
    pace = Pace()
    pace.observe(step(num_decodes=4), 0.1)
    assert 0.05 < pace.delay_s(step(num_decodes=4)) < 0.08


def test_a_short_step_is_planned_at_once():
    pace = Pace()
    pace.observe(step(num_decodes=4), 0.002)
    assert pace.delay_s(step(num_decodes=4)) == 0


def test_prompt_tokens_take_their_time_on_top():
    pace = Pace()
    pace.observe(step(num_decodes=4), 0.1)
    pace.observe(step(num_decodes=4, num_prompt_tokens=1000), 1.1)
    decodes = pace.delay_s(step(num_decodes=4))
    assert 0.3 < pace.delay_s(step(num_decodes=4, num_prompt_tokens=500)) - decodes < 0.4


def test_shorter_steps_are_believed_at_once_and_longer_ones_by_and_by():
    pace = Pace()
    pace.observe(step(num_decodes=4), 0.1)
    pace.observe(step(num_decodes=4), 0.02)
    assert pace.delay_s(step(num_decodes=4)) < 0.02
    pace.observe(step(num_decodes=4), 0.1)
    assert pace.delay_s(step(num_decodes=4)) < 0.05
