"""The sampler against one that does a row at a time, and what one row may not do to the others."""

import math
import random

import numpy as np
import pytest
import torch

from pageloom.plan import Admission
from pageloom.sampling_params import SamplingParams
from tests.support.sampler_bench import VOCAB_SIZE, Bench, plain_rows, tokens_by_slot
from worker_svc.sampler import NOT_FINITE, Sampler


def make_logits(rows: int, vocab_size: int = VOCAB_SIZE, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def random_sampling(rng: random.Random) -> SamplingParams:
    def maybe(value):
        return value if rng.random() < 0.5 else None

    values = {
        "temperature": maybe(rng.choice([0.0, 0.3, 0.7, 1.3, 2.0])),
        "top_p": maybe(rng.choice([0.1, 0.5, 0.9, 0.999])),
        "top_k": maybe(rng.choice([1, 2, 17, 299, 300, 5000])),
        "min_p": maybe(rng.choice([0.01, 0.2, 1.0])),
        "presence_penalty": maybe(rng.uniform(-2, 2)),
        "frequency_penalty": maybe(rng.uniform(-2, 2)),
        "repetition_penalty": maybe(rng.choice([0.7, 1.4])),
        "logit_bias": maybe({rng.randrange(VOCAB_SIZE): rng.uniform(-9, 9) for _ in range(rng.randrange(1, 9))}),
        "min_tokens": maybe(3),
        "stop_token_ids": maybe(tuple(rng.randrange(VOCAB_SIZE) for _ in range(4))),
        "logprobs": maybe(rng.choice([0, 5])),
        "allowed_token_ids": maybe(tuple(rng.sample(range(VOCAB_SIZE), 100))),
        "bad_words": maybe(tuple(tuple(rng.choices(range(VOCAB_SIZE), k=rng.choice([1, 2]))) for _ in range(900))),
    }
    return SamplingParams(
        seed=rng.randrange(2**64), **{key: value for key, value in values.items() if value is not None}
    )


def test_equals_one_row_at_a_time():
    """300 random parameter sets, each over several tokens, so that penalties, bad words and min_tokens see history."""
    rng = random.Random(5)
    for round_index in range(10):
        bench = Bench()
        slots = list(range(30))
        for slot in slots:
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 9))]
            output = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(4))]
            bench.bind(slot, random_sampling(rng), prompt, output, choice_index=rng.randrange(3))
        for step in range(5):
            stepping = rng.sample(slots, 20)
            logits = make_logits(len(stepping), seed=100 * round_index + step)
            expected = {slot: bench.expected(row, slot) for slot, row in zip(stepping, logits, strict=True)}
            assert tokens_by_slot(bench.sample(logits, stepping)) == expected


@pytest.mark.parametrize("sampling", [{"top_p": 0.95}, {"top_k": 1500}, {"top_p": 0.6, "top_k": 2000}, {}])
def test_flat_distributions_beyond_the_candidates(sampling):
    """Over 5,000 nearly equal tokens the first 1,024 do not hold the nucleus."""
    bench = Bench(vocab_size=5000)
    logits = make_logits(8, 5000, spread=0.1)
    logits[3, 77] = 30.0
    for slot in range(8):
        bench.bind(slot, SamplingParams(seed=slot, **sampling))
    expected = {slot: bench.expected(logits[slot], slot) for slot in range(8)}
    assert tokens_by_slot(bench.sample(logits, list(range(8)))) == expected


@pytest.mark.parametrize("mate_temperature", [0.0, 1.0])
def test_a_row_does_not_depend_on_its_mates(mate_temperature):
    sampling = SamplingParams(seed=11, temperature=0.9, top_p=0.9, presence_penalty=0.5)
    logits = make_logits(16)
    alone = Bench()
    alone.bind(4, sampling)
    crowd = Bench()
    for slot in range(16):
        mate = SamplingParams(seed=slot, temperature=mate_temperature, top_p=0.3, top_k=3, logprobs=2)
        crowd.bind(slot, sampling if slot == 4 else mate)
    for _ in range(5):
        one = tokens_by_slot(alone.sample(logits[4:5], [4]))[4]
        assert tokens_by_slot(crowd.sample(logits, list(range(16))))[4] == one


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 3000])
@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9, "top_k": 40, "min_p": 0.01}])
def test_rows_without_finite_logits_fail_alone(vocab_size, truncation):
    bench = Bench(vocab_size)
    for slot in range(6):
        sampling = SamplingParams(
            seed=slot, temperature=float(slot % 2), logprobs=1, frequency_penalty=1.0, **truncation
        )
        bench.bind(slot, sampling)
    logits = make_logits(6, vocab_size)
    expected = {slot: bench.expected(logits[slot], slot) for slot in (2, 3, 4)}
    logits[0, 5] = math.nan
    logits[1] = math.inf
    logits[5] = -math.inf
    draws = bench.sample(logits, list(range(6)))
    assert draws.failures == dict.fromkeys((0, 1, 5), NOT_FINITE)
    assert tokens_by_slot(draws) == expected
    assert draws.logprobs.keys() == {2, 3, 4}


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        ({}, True),
        ({"top_p": 0.5, "top_k": 3}, True),
        ({"min_tokens": 2}, True),
        ({"min_tokens": 3}, False),
        ({"temperature": 0.5}, False),
        ({"logprobs": 0}, False),
        ({"logit_bias": {5: 1.0}}, False),
        ({"presence_penalty": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"allowed_token_ids": (5,)}, False),
        ({"bad_words": ((5, 6),)}, False),
    ],
)
def test_only_plain_greedy_rows_do_without_their_logits(asked, plain):
    bench = Bench()
    bench.bind(3, SamplingParams(temperature=0.0, seed=0, max_tokens=9))
    bench.bind(4, SamplingParams(**{"temperature": 0.0, "seed": 0, "max_tokens": 9, **asked}))
    both = plain_rows([3, 4], np.array([3, 5]), np.array([0, 2]))
    assert bench.sampler.takes_most_likely(both) is plain
    assert bench.sampler.takes_most_likely(plain_rows([3], np.array([3]), np.array([0])))


def test_logprobs_are_of_the_untouched_distribution():
    bench = Bench()
    bench.bind(
        0, SamplingParams(seed=1, temperature=2.0, top_k=2, logit_bias={5: 50.0}, presence_penalty=1.0, logprobs=3)
    )
    bench.bind(1, SamplingParams(seed=1, temperature=0.0, logprobs=0))
    bench.bind(2, SamplingParams(seed=1))
    logits = make_logits(3)
    draws = bench.sample(logits, [0, 1, 2])
    raw = logits.double().log_softmax(dim=-1)
    tokens = tokens_by_slot(draws)
    assert draws.logprobs.keys() == {0, 1}
    assert tokens[0] == 5
    top = raw[0].topk(3)
    assert draws.logprobs[0][0].top_token_ids == tuple(top.indices.tolist())
    assert draws.logprobs[0][0].top_logprobs == pytest.approx(top.values.tolist(), abs=1e-4)
    assert draws.logprobs[0][0].logprob == pytest.approx(raw[0, 5].item(), abs=1e-4)
    assert draws.logprobs[1][0].top_token_ids == ()
    assert draws.logprobs[1][0].logprob == pytest.approx(raw[1, tokens[1]].item(), abs=1e-4)


def test_token_ids_outside_the_vocabulary_harm_nobody():
    """The scheduler refuses them; a worker that gets them all the same still serves the others."""
    bench = Bench()
    stray = SamplingParams(seed=0, temperature=0.0, logit_bias={VOCAB_SIZE: 5.0}, stop_token_ids=(10**6,), min_tokens=9)
    bench.bind(0, stray)
    bench.bind(1, SamplingParams(seed=0, temperature=0.0))
    logits = make_logits(2)
    assert tokens_by_slot(bench.sample(logits, [0, 1])) == dict(enumerate(logits.argmax(dim=-1).tolist()))


def test_a_slot_bound_again_forgets_the_last_choice():
    bench = Bench()
    heavy = SamplingParams(
        seed=0, temperature=0.0, frequency_penalty=2.0, logit_bias={3: 90.0}, min_tokens=50, stop_token_ids=(4,)
    )
    bench.bind(0, heavy, prompt=(1,), output=(5, 5, 5, 6))
    bench.sample(make_logits(1), [0])
    bench.bind(0, SamplingParams(seed=0, temperature=0.0))
    logits = make_logits(1, seed=1)
    logits[0, 7] = 50.0
    assert tokens_by_slot(bench.sample(logits, [0])) == {0: 7}
    light = SamplingParams(seed=0, temperature=0.0, presence_penalty=0.1)
    bench.bind(0, light, output=())
    logits[0, 5] = 50.05
    assert tokens_by_slot(bench.sample(logits, [0])) == {0: 5}


@pytest.mark.parametrize("vocab_size", [1, 127, 129, 1000])
def test_tokens_stay_inside_any_vocabulary(vocab_size):
    bench = Sampler(max_num_seqs=64, vocab_size=vocab_size, eos_token_ids=(), device=torch.device("cpu"))
    slots = np.arange(64)
    for slot in slots.tolist():
        sampling = SamplingParams(seed=slot, temperature=10.0, top_p=0.99)
        admission = Admission(
            slot=slot, token_ids=(0,), num_prompt_tokens=1, num_computed_tokens=0, block_ids=(), sampling=sampling
        )
        bench.bind(admission)
    draws = bench.sample(torch.zeros(64, vocab_size), plain_rows(slots, np.ones(64, np.int64), np.zeros(64, np.int64)))
    assert len(draws.token_ids) == 64
    assert 0 <= draws.token_ids.min() <= draws.token_ids.max() < vocab_size


def test_frequencies_follow_the_distribution():
    vocab_size, num_draws = 200, 20_000
    probs = torch.rand(vocab_size, generator=torch.Generator().manual_seed(3)) ** 4
    probs[50:60] = 0.0
    probs /= probs.sum()
    bench = Sampler(max_num_seqs=1000, vocab_size=vocab_size, eos_token_ids=(), device=torch.device("cpu"))
    slots = np.arange(1000)
    for slot in slots.tolist():
        admission = Admission(
            slot=slot, token_ids=(0,), num_prompt_tokens=1, num_computed_tokens=0, block_ids=(),
            sampling=SamplingParams(seed=slot),
        )  # fmt: skip
        bench.bind(admission)
    counts = np.zeros(vocab_size)
    for position in range(1, num_draws // 1000 + 1):
        logits = probs.log().expand(1000, -1).clone()
        draws = bench.sample(logits, plain_rows(slots, np.full(1000, position), np.full(1000, position - 1)))
        counts += np.bincount(draws.token_ids, minlength=vocab_size)
    assert counts[50:60].sum() == 0
    expected = probs.double().numpy() * num_draws
    # Tokens that are expected once or more; some 150 degrees of freedom.
    often = expected >= 1
    chi_squared = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert chi_squared < often.sum() + 5 * np.sqrt(2 * often.sum())
