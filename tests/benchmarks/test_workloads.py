"""What each workload sends, as the benchmark promises it."""

from itertools import chain
from statistics import fmean

import pytest

from benchmarks.workloads import NUM_RESERVED_IDS, WORKLOADS, round_requests

VOCAB_SIZE = 49152


def requests(name, *, round_name="round-0", seed=0, scale=1.0):
    return round_requests(WORKLOADS[name], round_name=round_name, seed=seed, vocab_size=VOCAB_SIZE, scale=scale)


def lengths(name, **kwargs):
    return [(len(request.prompt_token_ids), request.num_output_tokens) for request in requests(name, **kwargs)]


@pytest.mark.parametrize(
    ("name", "prompt_len", "output_len", "concurrency"),
    [
        ("single", 128, 128, 1),
        ("batch8", 128, 128, 8),
        ("batch32", 128, 96, 32),
        ("prefix", 1056, 16, 8),
        ("prefill", 2048, 1, 1),
    ],
)
def test_fixed_lengths(name, prompt_len, output_len, concurrency):
    assert set(lengths(name)) == {(prompt_len, output_len)}
    assert WORKLOADS[name].concurrency == concurrency
    assert len(requests(name)) >= 2 * concurrency


def test_mixed_lengths_have_a_long_tail_and_are_the_same_for_every_seed_and_round():
    prompt_lens, output_lens = zip(*lengths("mixed"), strict=True)
    assert 140 < fmean(prompt_lens) < 170
    assert 115 < fmean(output_lens) < 130
    assert max(prompt_lens) > 8 * sorted(prompt_lens)[len(prompt_lens) // 2]
    assert max(prompt_lens) + max(output_lens) <= 1536
    assert WORKLOADS["mixed"].concurrency == 16
    assert lengths("mixed") == lengths("mixed", seed=1) == lengths("mixed", round_name="round-1")


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_are_reproducible_and_avoid_special_tokens(name):
    assert requests(name) == requests(name)
    ids = set(chain.from_iterable(request.prompt_token_ids for request in requests(name)))
    assert min(ids) >= NUM_RESERVED_IDS
    assert max(ids) < VOCAB_SIZE


def test_only_the_prefix_workload_can_hit_a_prefix_cache():
    def starts(name):
        everything = [*requests(name), *requests(name, round_name="round-1"), *requests(name, seed=1)]
        return [request.prompt_token_ids[:4] for request in everything]

    for name in WORKLOADS.keys() - {"prefix"}:
        assert len(set(starts(name))) == len(starts(name)), name
    assert len(set(starts("prefix"))) == 2  # one a seed


def test_scale_changes_the_number_of_requests_and_nothing_else():
    assert len(requests("batch8", scale=0.25)) == 4
    assert len(requests("prefill", scale=0.01)) == 1
    assert set(lengths("batch32", scale=0.1)) == {(128, 96)}
