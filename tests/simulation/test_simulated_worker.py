"""The runner without a model: it reads plans as the simulation's device does, takes its time, and loads nothing."""

import math
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.plan import Admission, BatchPlan, StepResult
from pageloom.policies import Pooling
from pageloom.roofline import FixedStepTime, StepShape, roofline
from pageloom.sampling_params import SamplingParams
from pageloom.simulated_tokens import SIMULATED_EOS_TOKEN_ID
from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation import simulate as simulate_module
from scheduler_svc.simulation.device import SimulatedDevice
from scheduler_svc.simulation.simulate import simulate
from scheduler_svc.simulation.trace import Trace, TraceRequest
from worker_svc.simulated import SimulatedRunner, simulated_runner
from worker_svc.slots import PlanError


def config(profile: str, **settings: int) -> WorkerConfig:
    return WorkerConfig(model="", simulate=profile, **settings)  # type: ignore[arg-type]


def admission(slot: int = 0, *, prompt: int = 10, seed: int = 1, choice_index: int = 0, blocks: int = 4) -> Admission:
    return Admission(
        slot=slot,
        token_ids=tuple(range(300, 300 + prompt)),
        num_prompt_tokens=prompt,
        num_computed_tokens=0,
        block_ids=tuple(range(blocks * slot, blocks * (slot + 1))),
        sampling=SamplingParams(seed=seed, max_tokens=100),
        choice_index=choice_index,
    )


def plan(step: int, **fields: object) -> BatchPlan:
    return BatchPlan(epoch=1, step=step, snapshot=step == 1, **fields)  # type: ignore[arg-type]


def outputs(runner: SimulatedRunner, num_steps: int, *admissions: Admission) -> dict[int, list[int]]:
    """What each slot draws if all are admitted at once and then only continue."""
    lens = tuple(len(each.token_ids) for each in admissions)
    first = plan(1, admissions=admissions, chunk_slots=tuple(each.slot for each in admissions), chunk_lens=lens)
    drawn: dict[int, list[int]] = {each.slot: [] for each in admissions}
    for step_plan in (first, *(plan(step) for step in range(2, num_steps + 1))):
        result = runner.step(step_plan)
        for slot, token_id in zip(result.slots, result.token_ids, strict=True):
            drawn[slot].append(token_id)
    return drawn


def test_tokens_depend_on_seed_choice_and_position_alone():
    alone = outputs(simulated_runner(config("fixed:0us")), 8, admission())[0]
    crowd = outputs(
        simulated_runner(config("fixed:0us")),
        8,
        admission(3, seed=1),
        admission(1, seed=2),
        admission(2, seed=1, choice_index=1),
    )
    assert crowd[3] == alone
    assert len({tuple(tokens) for tokens in crowd.values()}) == 3
    assert all(len(tokens) == 8 for tokens in crowd.values())
    assert SIMULATED_EOS_TOKEN_ID not in {token for tokens in crowd.values() for token in tokens}


def test_log_probabilities_come_for_each_token_of_those_that_asked():
    runner = simulated_runner(config("fixed:0us"))
    asked = replace(admission(1), sampling=SamplingParams(seed=1, max_tokens=100, logprobs=2))
    result = runner.step(plan(1, admissions=(admission(0), asked), chunk_slots=(0, 1), chunk_lens=(10, 10)))
    assert result.logprobs.keys() == {1}
    drawn = dict(zip(result.slots, result.token_ids, strict=True))
    (logprobs,) = result.logprobs[1]
    assert logprobs.top_token_ids == (drawn[1], 0)
    assert logprobs.top_logprobs == (logprobs.logprob,) * 2
    plain = replace(admission(1), sampling=SamplingParams(seed=1, max_tokens=100))
    result = runner.step(plan(2, released_slots=(1,), admissions=(plain,), chunk_slots=(1,), chunk_lens=(10,)))
    assert result.logprobs == {}


def test_prompts_are_scored_in_chunks():
    runner = simulated_runner(config("fixed:0us"))
    start = admission(1)
    asked = replace(start, sampling=replace(start.sampling, prompt_logprobs=1), first_scored_token=1)
    num_tokens = len(start.token_ids)
    first = runner.step(plan(1, admissions=(asked,), chunk_slots=(1,), chunk_lens=(4,))).prompt_logprobs[1]
    last = runner.step(plan(2, chunk_slots=(1,), chunk_lens=(num_tokens - 4,))).prompt_logprobs[1]
    assert (first.first_index, last.first_index) == (1, 5)
    assert first.top_token_ids + last.top_token_ids == start.token_ids[1:]
    assert set(first.logprobs + last.top_logprobs) == {-math.log(runner.model_info.vocab_size)}
    assert runner.step(plan(3)).prompt_logprobs == {}


def test_a_resumed_choice_goes_on_as_it_would_have():
    whole = outputs(simulated_runner(config("fixed:0us")), 8, admission())[0]
    start = admission()
    resumed = replace(start, token_ids=(*start.token_ids, *whole[:3]))
    assert outputs(simulated_runner(config("fixed:0us")), 5, resumed)[0] == whole[3:]


def test_a_plan_that_contradicts_its_slots_is_refused():
    with pytest.raises(PlanError, match="slot 5 is run but not bound"):
        simulated_runner(config("fixed:0us")).step(plan(1, chunk_slots=(5,), chunk_lens=(1,)))


def test_steps_take_the_time_of_the_profile_on_average():
    runner = simulated_runner(config("fixed:2ms"))
    started_s = time.perf_counter()
    outputs(runner, 100, admission(blocks=8))
    mean_s = (time.perf_counter() - started_s) / 100
    # Never too short; how much longer is up to what else runs on this machine.
    assert 0.0019 <= mean_s <= 0.004


def test_memory_and_context_are_those_of_the_profile_or_what_is_asked_for():
    runner = simulated_runner(config("h200:llama-3-8b", block_size=64))
    assert runner.cache_info.num_blocks == roofline("h200", "llama-3-8b").num_kv_tokens(0.9) // 64
    assert runner.model_info.max_model_len == 8192
    small = simulated_runner(config("h200:llama-3-8b", num_blocks=10, block_size=32))
    assert (small.cache_info.num_blocks, small.model_info.max_model_len) == (10, 320)
    assert simulated_runner(config("fixed:1ms", kv_cache_memory_bytes=23_040 * 64)).cache_info.num_blocks == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_model_len": 9000}, "more than the 8192 of llama-3-8b"), ({"kv_cache_memory_bytes": 100}, "too small")],
)
def test_what_the_profile_does_not_allow_is_an_error(settings: dict[str, int], message: str):
    with pytest.raises(InvalidConfig, match=message):
        simulated_runner(config("h200:llama-3-8b", **settings))


class SteppedTwice(SimulatedDevice):
    """A device that shows every plan to a runner too, and compares what the two made of it."""

    runner: SimulatedRunner
    shapes: list[StepShape]

    def run(self, plan: BatchPlan) -> tuple[StepResult, int]:
        result, num_growing = super().run(plan)
        twin = self.runner.step(plan)
        drawn = dict(zip(result.slots, result.token_ids, strict=True))
        others = dict(zip(twin.slots, twin.token_ids, strict=True))
        assert drawn.keys() == others.keys()
        assert all(drawn[slot] in (others[slot], SIMULATED_EOS_TOKEN_ID) for slot in drawn)
        return result, num_growing


@pytest.mark.parametrize("depth", [1, 2])
def test_worker_and_device_read_the_core_s_plans_alike(depth: int, monkeypatch: pytest.MonkeyPatch):
    """With memory so small that sequences are preempted, and prefixes that are shared."""
    shapes: dict[str, list[StepShape]] = {"device": [], "worker": []}

    class Recording(FixedStepTime):
        def step_time_s(self, shape: StepShape) -> float:
            shapes[self.name].append(shape)
            return self.duration_s

    settings = SimulationConfig(
        trace="",
        num_blocks=120,
        block_size=16,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        max_num_steps_in_flight=depth,
    )
    worker_config = config(
        "h200:llama-3-8b", num_blocks=120, block_size=16, max_num_seqs=32, max_num_batched_tokens=512
    )
    model = roofline("h200", "llama-3-8b").model

    def make(_timer: object, output_lens: np.ndarray, **sizes: int) -> SteppedTwice:
        device = SteppedTwice(Recording("device", 0.004, model), output_lens, **sizes)
        device.runner = simulated_runner(worker_config)
        device.runner._timer = Recording("worker", 0.0, model)
        return device

    monkeypatch.setattr(simulate_module, "SimulatedDevice", make)
    rows = [TraceRequest(i / 100, 100 + 7 * (i % 9), 120 + 11 * (i % 7), (i % 5, 100 + i)) for i in range(40)]
    report = simulate(settings, Trace(name="test", requests=tuple(rows), hash_block_len=96)).report
    assert report.num_finished == 40
    assert report.num_preemptions > 0
    assert report.prefix_hit_ratio > 0.1
    assert [shape[:2] for shape in shapes["device"]] == [shape[:2] for shape in shapes["worker"]]
    # The worker counts a last chunk of one token among the decodes, which is all the same to memory.
    totals = [[shape.decode_kv_tokens + shape.prefill_kv_tokens for shape in each] for each in shapes.values()]
    assert totals[0] == totals[1]


def test_a_simulated_worker_loads_no_torch():
    code = "import sys, worker_svc.__main__; print({'torch', 'triton', 'transformers'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def test_an_unknown_profile_ends_the_worker_with_a_line_that_names_those_there_are():
    command = [sys.executable, "-m", "pageloom", "worker", "--simulate", "h200:gpt-5"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("pageloom worker: there is no profile of the model 'gpt-5'; there are llama-3-8b, ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("pooling", list(Pooling))
def test_embeddings_depend_on_the_prompt_alone(pooling: Pooling):
    def embedding(prompt: int, chunk_lens: tuple[int, ...]) -> bytes:
        runner = simulated_runner(config("fixed:0us"))
        step_plans = [plan(step, chunk_slots=(0,), chunk_lens=(length,)) for step, length in enumerate(chunk_lens, 1)]
        step_plans[0] = replace(step_plans[0], admissions=(replace(admission(prompt=prompt), pooling=pooling),))
        results = [runner.step(step_plan) for step_plan in step_plans]
        assert [len(result.embeddings) for result in results] == [0] * (len(results) - 1) + [1]
        assert all(result.slots == () for result in results)
        assert len(results[-1].embeddings[0]) == 4 * runner.model_info.hidden_size
        return results[-1].embeddings[0]

    assert embedding(10, (10,)) == embedding(10, (4, 5, 1))
    assert embedding(10, (10,)) != embedding(11, (11,))
    assert np.isfinite(np.frombuffer(embedding(10, (10,)), "<f4")).all()
