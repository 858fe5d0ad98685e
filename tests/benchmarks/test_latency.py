"""The statistics, against numpy's and against figures worked out by hand."""

import random

import numpy as np
import pytest

from benchmarks.completions import Completion
from benchmarks.latency import Distribution, Round, summarize


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1001])
def test_percentiles_are_numpys(count):
    rng = random.Random(count)
    values = [rng.expovariate(1.0) for _ in range(count)]
    distribution = Distribution.of(values)
    assert distribution is not None
    assert distribution.p50 == pytest.approx(np.percentile(values, 50))
    assert distribution.p99 == pytest.approx(np.percentile(values, 99))
    assert distribution.mean == pytest.approx(np.mean(values))


def completion(*, sent_s, arrival_s, num_output_tokens, num_cached_tokens=0):
    return Completion(
        sent_s=sent_s,
        arrival_s=arrival_s,
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=10,
        num_cached_tokens=num_cached_tokens,
    )


def test_summary_of_two_rounds():
    first = Round(
        completions=(
            completion(sent_s=0.0, arrival_s=(1.0, 2.0, 4.0), num_output_tokens=5),
            completion(sent_s=1.0, arrival_s=(5.0,), num_output_tokens=1),
        ),
        client_cpu_s=0.5,
    )
    second = Round(
        completions=(completion(sent_s=10.0, arrival_s=(12.0,), num_output_tokens=4, num_cached_tokens=6),),
        client_cpu_s=0.2,
    )
    summary = summarize([first, second])
    assert summary.num_requests == 3
    assert summary.output_tokens_per_s_by_round == (6 / 5.0, 4 / 2.0)
    assert summary.output_tokens_per_s == pytest.approx(1.6)
    assert summary.prompt_tokens_per_s == pytest.approx((20 / 5.0 + 10 / 2.0) / 2)
    assert summary.ttft_s == Distribution.of([1.0, 4.0, 2.0])
    assert summary.itl_s == Distribution.of([1.0, 2.0])
    assert summary.tpot_s == Distribution.of([3.0 / 4, 0.0])
    assert summary.cached_prompt_ratio == pytest.approx(6 / 30)
    assert summary.tokens_per_chunk == pytest.approx(10 / 5)
    assert summary.client_cpu_ratio == pytest.approx(0.7 / 7.0)
