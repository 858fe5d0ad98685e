"""Made-up and scaled traces, and the prompts that stand for their rows."""

import numpy as np
import pytest

from pageloom.errors import InvalidConfig
from scheduler_svc.simulation.trace import Trace, TraceRequest
from scheduler_svc.simulation.workload import (
    PromptPool,
    assign_tenants,
    generate_requests,
    load_trace,
    scale_lengths,
    synthetic_trace,
)

MOONCAKE = "mooncake-conv-excerpt"


@pytest.mark.parametrize(("name", "prompt", "output"), [("sharegpt", 161.31, 337.99), ("alpaca", 19.31, 58.45)])
def test_datasets_have_the_paper_s_means_and_rate(name: str, prompt: float, output: float):
    requests = synthetic_trace(name, num_requests=2000, request_rate=4.0, seed=1).requests
    assert np.mean([request.num_prompt_tokens for request in requests]) == pytest.approx(prompt, rel=0.005)
    assert np.mean([request.num_output_tokens for request in requests]) == pytest.approx(output, rel=0.005)
    assert len(requests) / requests[-1].arrival_s == pytest.approx(4.0, rel=0.06)
    assert max(request.num_prompt_tokens + request.num_output_tokens for request in requests) <= 2048


def test_a_seed_decides_everything():
    traces = [load_trace("sharegpt", num_requests=50, request_rate=1.0, seed=seed) for seed in (3, 3, 4)]
    assert traces[0] == traces[1] != traces[2]


def test_a_rate_stretches_a_trace_s_own_arrivals():
    plain, faster = (
        load_trace("azure-conv-excerpt", num_requests=None, request_rate=rate, seed=0) for rate in (None, 20)
    )
    assert (len(faster.requests) - 1) / faster.span_s == pytest.approx(20)
    gaps, faster_gaps = (np.diff([request.arrival_s for request in trace.requests]) for trace in (plain, faster))
    assert np.allclose(gaps / gaps.sum(), faster_gaps / faster_gaps.sum())


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_prompts_share_what_their_hash_ids_share():
    rows = (TraceRequest(0, 1500, 1, (0, 1, 2)), TraceRequest(1, 1100, 1, (0, 1, 3)), TraceRequest(2, 512, 1, (1,)))
    trace = Trace(name="t", requests=rows)
    pool = PromptPool(trace, vocab_size=50_000)
    first, second, third = (pool.prompt(i, row) for i, row in enumerate(rows))
    assert (len(first), len(second), len(third)) == (1500, 1100, 512)
    assert common_prefix(first, second) == 1024
    assert common_prefix(first, third) == 0
    assert third == first[512:1024]
    assert min(first) >= 256
    assert max(first) < 50_000


def test_scaled_prompts_share_scaled_blocks():
    trace = scale_lengths(load_trace(MOONCAKE, num_requests=60, request_rate=None, seed=0), 1 / 32)
    assert trace.hash_block_len == 16
    pool = PromptPool(trace, vocab_size=50_000)
    prompts = [pool.prompt(i, row) for i, row in enumerate(trace.requests)]
    assert [len(prompt) for prompt in prompts] == [row.num_prompt_tokens for row in trace.requests]
    for (left, row), (right, other) in zip(
        zip(prompts, trace.requests, strict=True), list(zip(prompts, trace.requests, strict=True))[1:], strict=False
    ):
        shared = common_prefix(row.hash_ids, other.hash_ids) * 16
        assert common_prefix(left, right) == min(shared, len(left), len(right))


def test_prompts_without_hash_ids_share_nothing():
    trace = load_trace("azure-conv-excerpt", num_requests=100, request_rate=None, seed=0)
    pool = PromptPool(trace, vocab_size=50_000)
    starts = [pool.prompt(i, row)[:16] for i, row in enumerate(trace.requests) if row.num_prompt_tokens >= 16]
    assert len(set(starts)) == len(starts) > 90


@pytest.mark.parametrize("factor", [1 / 128, 0.3])
def test_a_scale_that_makes_no_whole_blocks_is_an_error(factor: float):
    with pytest.raises(InvalidConfig, match="whole and at least 8 tokens"):
        scale_lengths(load_trace(MOONCAKE, num_requests=5, request_rate=None, seed=0), factor)


def test_tenants_get_their_shares():
    trace = assign_tenants(
        synthetic_trace("alpaca", num_requests=2000, request_rate=1, seed=0), {"a": 1, "b": 3}, seed=0
    )
    assert sum(request.tenant == "b" for request in trace.requests) / 2000 == pytest.approx(0.75, abs=0.03)


def test_requests_ask_for_what_the_context_leaves_and_at_least_for_what_they_get():
    rows = (TraceRequest(0, 100, 10), TraceRequest(0, 1900, 10), TraceRequest(0, 10, 1500), TraceRequest(0, 2040, 20))
    trace = Trace(name="t", requests=rows)
    pool = PromptPool(trace, vocab_size=50_000)
    requests = generate_requests(trace, pool, max_tokens=1024, max_model_len=2048)
    assert [request.sampling.max_tokens for _, request in requests] == [1024, 148, 1500, 20]
