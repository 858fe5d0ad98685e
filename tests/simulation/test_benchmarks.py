"""What `python -m benchmarks.simulated` measures, at a small scale."""

from dataclasses import replace

import pytest

from benchmarks.simulated import fairness, paged, placement, prefix
from pageloom.policies import SchedulingPolicy
from scheduler_svc.simulation.trace import EXCERPTS, Trace, TraceRequest, read_trace
from scheduler_svc.simulation.workload import load_trace, scale_lengths


@pytest.mark.parametrize("own_len", prefix.OWN_LENS)
def test_prefill_is_sped_up_by_four_fifths_of_the_bound(own_len: int):
    speed_up = prefix.speed_up("h200", "llama-3-8b", 16, own_len)
    assert 0.8 * speed_up.bound <= speed_up.ratio <= speed_up.bound


def test_an_endless_cache_finds_every_repeated_prefix():
    rows = (
        TraceRequest(0, 600, 1, (0, 1)),
        TraceRequest(1, 1500, 1, (0, 1, 2)),
        TraceRequest(2, 1000, 1, (3, 1)),
        TraceRequest(3, 512, 1, (0,)),
    )
    tokens, blocks = prefix.infinite_hits(Trace(name="t", requests=rows))
    assert blocks == 3 / 8
    assert tokens == (1024 + 511) / 3612


def mooncake(num_requests: int) -> Trace:
    """At a quarter of its length, so that it takes a quarter of the time."""
    trace = load_trace("mooncake-conv-excerpt", num_requests=num_requests, request_rate=None, seed=0)
    return scale_lengths(trace, 1 / 4)


def test_the_simulated_cache_finds_what_an_endless_one_would(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix, "_ALL_BLOCKS", 5_000)
    hits = prefix.hits(mooncake(100))
    assert hits.simulated == pytest.approx(hits.infinite_tokens, abs=0.03)


def test_placement_by_prefix_finds_more_than_in_turn():
    in_turn, least_loaded, by_prefix = placement.measure(mooncake(60), num_blocks=600)
    assert by_prefix.prefix_hit_ratio > 1.5 * max(in_turn.prefix_hit_ratio, least_loaded.prefix_hit_ratio)


def test_fair_shares_are_equal_and_others_are_not():
    setting = replace(fairness.SETTINGS[0], settled_s=2.0, duration_s=14.0, max_num_seqs=32, capacity=20.0)
    fair = fairness.backlogged(setting, SchedulingPolicy.fair)
    first_come = fairness.backlogged(setting, SchedulingPolicy.fcfs)
    assert fair.jain_index >= 0.95
    assert first_come.jain_index < 0.8


def test_paging_serves_more_than_reservations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paged, "NUM_BISECTIONS", 1)
    monkeypatch.setattr(paged, "POLICIES", (("paged", "first-fit"), ("max-length", "first-fit"), ("oracle", "buddy")))
    workload = replace(paged.WORKLOADS["azure-opt-13b"], duration_s=60.0, overload_rate=4.0)
    ours, most, least = paged.measure(workload, "azure-conv-excerpt", 16)
    assert ours.waste < 0.02
    assert most.waste > 0.7
    assert ours.mean_running > 3 * most.mean_running
    assert ours.mean_running > 1.3 * least.mean_running
    assert ours.sustained_rate > 1.3 * most.sustained_rate
    assert ours.sustained_rate > 1.1 * least.sustained_rate


def test_the_excerpt_leaves_out_what_is_too_long():
    trace = read_trace(EXCERPTS["azure-conv-excerpt"])
    kept = paged._trace(paged.WORKLOADS["azure-opt-13b"], "azure-conv-excerpt").requests
    assert 0 < len(trace.requests) - len(kept) < 40
    assert max(row.num_prompt_tokens + row.num_output_tokens for row in kept) <= 4096
