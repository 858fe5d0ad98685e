"""The core in whole simulations: what finishes, what memory and cache do, and that equal runs are equal."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pageloom.errors import EngineError
from pageloom.plan import BatchPlan
from pageloom.simulation_config import SimulationConfig
from scheduler_svc.core import Scheduler
from scheduler_svc.simulation.report import Report
from scheduler_svc.simulation.simulate import Outcome, prepare_trace, simulate
from scheduler_svc.simulation.trace import Trace, TraceRequest


def run(config: SimulationConfig) -> Outcome:
    return simulate(config, prepare_trace(config))


AZURE = SimulationConfig(trace="azure-conv-excerpt", num_requests=80, request_rate=40)
MOONCAKE = SimulationConfig(
    trace="mooncake-conv-excerpt", length_scale=1 / 16, block_size=16, num_requests=150, request_rate=20
)


@pytest.mark.parametrize("depth", [1, 2])
def test_every_request_gets_what_the_trace_says(depth: int):
    config = replace(AZURE, max_num_steps_in_flight=depth)
    trace = prepare_trace(config)
    outcome = simulate(config, trace)
    assert outcome.report.num_finished == len(trace.requests) == 80
    assert outcome.recorder.num_output_tokens.tolist() == [row.num_output_tokens for row in trace.requests]
    assert (outcome.recorder.first_token_s > outcome.recorder.arrived_s).all()
    assert (outcome.recorder.finished_s >= outcome.recorder.first_token_s).all()


def test_equal_settings_give_equal_figures():
    first, second = (run(replace(MOONCAKE, num_workers=2)).report for _ in range(2))
    assert first == second


def test_one_request_takes_the_sum_of_its_steps():
    trace = Trace(name="one", requests=(TraceRequest(0.0, 100, 20),))
    report = simulate(replace(AZURE, hop_latency_s=0.001, max_num_steps_in_flight=1), trace).report
    assert report.e2e_s is not None
    assert report.num_steps == 20
    assert report.e2e_s.mean == pytest.approx(20 * (report.mean_step_s + 0.001))


def test_a_step_in_advance_hides_the_hop():
    def latency(depth: int, hop_latency_s: float) -> float:
        trace = Trace(name="one", requests=(TraceRequest(0.0, 100, 200),))
        config = replace(AZURE, max_num_steps_in_flight=depth, hop_latency_s=hop_latency_s)
        normalised = simulate(config, trace).report.normalised_s
        assert normalised is not None
        return normalised.mean

    assert latency(1, 0.002) == pytest.approx(latency(1, 0.0) + 0.002, rel=0.02)
    assert latency(2, 0.002) == pytest.approx(latency(2, 0.0), rel=0.01)


def test_blocks_waste_their_ends_only():
    wastes = [run(replace(AZURE, block_size=block_size)).report.memory.waste for block_size in (16, 32, 128)]
    assert 0.003 < wastes[0] < 0.015
    assert wastes[0] < wastes[1] < wastes[2] < 0.12


def test_memory_that_binds_preempts_and_still_finishes():
    config = replace(AZURE, num_blocks=150, block_size=32, max_model_len=4096, num_requests=80)
    report = run(config).report
    assert report.num_preemptions > 0
    assert report.num_finished + report.num_refused == 80
    assert report.memory.peak_use > 0.95
    assert report.memory.tokens_when_queued is not None
    assert report.memory.tokens_when_queued > 0.7


def test_the_prefix_cache_finds_what_the_trace_shares():
    shared, off = run(MOONCAKE).report, run(replace(MOONCAKE, enable_prefix_caching=False)).report
    assert 0.35 < shared.prefix_hit_ratio < 0.5
    assert off.prefix_hit_ratio == 0
    assert run(AZURE).report.prefix_hit_ratio < 0.005
    assert shared.ttft_s is not None
    assert off.ttft_s is not None
    assert shared.ttft_s.mean < off.ttft_s.mean


def test_several_workers_share_the_load():
    one, four = (run(replace(AZURE, request_rate=200, num_workers=count)).report for count in (1, 4))
    assert one.e2e_s is not None
    assert four.e2e_s is not None
    assert four.num_finished == 80
    assert four.e2e_s.mean < 0.8 * one.e2e_s.mean


def test_what_does_not_fit_the_context_is_refused_and_said():
    outcome = run(replace(AZURE, max_model_len=1000))
    num_longer = sum(row.num_prompt_tokens + row.num_output_tokens > 1000 for row in outcome.recorder.trace.requests)
    assert outcome.report.num_refused == num_longer > 0
    assert "maximum context length is 1000" in outcome.recorder.refusals[0]


def test_tenants_are_told_apart():
    report = run(replace(AZURE, tenants="a=1,b=4")).report
    assert set(report.tenants) == {"a", "b"}
    assert sum(tenant.num_requests for tenant in report.tenants.values()) == 80
    assert report.tenants["b"].num_tokens > 2 * report.tenants["a"].num_tokens


def test_a_scheduler_that_forgets_a_request_is_found_out(monkeypatch: pytest.MonkeyPatch):
    plan: Callable[[Scheduler, str, float], BatchPlan | None] = Scheduler.plan
    monkeypatch.setattr(Scheduler, "plan", lambda core, worker, now: plan(core, worker, now) if now < 3 else None)
    with pytest.raises(EngineError, match="requests are still open, but nothing runs any more"):
        run(AZURE)


def test_percentiles_are_those_of_the_recording():
    outcome = run(AZURE)
    report: Report = outcome.report
    waits = sorted((outcome.recorder.first_token_s - outcome.recorder.arrived_s).tolist())
    assert report.ttft_s is not None
    assert report.ttft_s.mean == pytest.approx(sum(waits) / 80)
    assert waits[39] <= report.ttft_s.p50 <= waits[40]
    assert waits[77] <= report.ttft_s.p99 <= waits[79]
