"""Which requests does each workload send? Token ids, lengths and concurrency; pure and deterministic.

Token ids are drawn at random, so prompts of two rounds, two workloads or two seeds share no prefix
except where the workload says so. Lengths never depend on the seed: every run does the same work.
"""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

# The low ids of every common vocabulary are special tokens or single bytes.
NUM_RESERVED_IDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One request: its prompt and how many tokens it must generate."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Log-normal lengths with this mean before they are capped at `longest`; `sigma` 0 makes them all equal."""

    mean: int
    sigma: float = 0.0
    longest: int = 1 << 20

    def spread(self, count: int) -> list[int]:
        """`count` lengths at evenly spaced quantiles, ascending: the distribution without sampling noise."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        quantiles = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
        return [min(self.longest, max(1, round(math.exp(mu + self.sigma * quantile)))) for quantile in quantiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A closed loop: `concurrency` requests at a time, the next one sent when one ends."""

    name: str
    description: str
    concurrency: int
    num_requests: int
    prompt: Lengths
    output: Lengths
    num_shared_tokens: int = 0


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="single",
            description="128 in / 128 out, one at a time",
            concurrency=1,
            num_requests=4,
            prompt=Lengths(mean=128),
            output=Lengths(mean=128),
        ),
        Workload(
            name="batch8",
            description="128 in / 128 out, 8 at a time",
            concurrency=8,
            num_requests=16,
            prompt=Lengths(mean=128),
            output=Lengths(mean=128),
        ),
        Workload(
            name="batch32",
            description="128 in / 96 out, 32 at a time",
            concurrency=32,
            num_requests=64,
            prompt=Lengths(mean=128),
            output=Lengths(mean=96),
        ),
        Workload(
            # ShareGPT's mean prompt (161 tokens); outputs shorter than its 338, so that a round on a CPU ends.
            name="mixed",
            description="long-tailed lengths, mean ~160 in / ~128 out, 16 at a time",
            concurrency=16,
            num_requests=48,
            prompt=Lengths(mean=161, sigma=1.0, longest=1024),
            output=Lengths(mean=128, sigma=0.8, longest=512),
        ),
        Workload(
            name="prefix",
            description="1,024 shared + 32 own in / 16 out, 8 at a time",
            concurrency=8,
            num_requests=32,
            prompt=Lengths(mean=32),
            output=Lengths(mean=16),
            num_shared_tokens=1024,
        ),
        Workload(
            name="prefill",
            description="2,048 in / 1 out, one at a time",
            concurrency=1,
            num_requests=4,
            prompt=Lengths(mean=2048),
            output=Lengths(mean=1),
        ),
    )
}


def round_requests(
    workload: Workload, *, round_name: str, seed: int, vocab_size: int, scale: float = 1.0
) -> list[CompletionRequest]:
    """The requests of one round, in sending order. `scale` multiplies their number, never their lengths.

    The shared part of a prompt is the same in every round: the workload measures a hot prefix.
    """
    count = max(1, round(workload.num_requests * scale))
    prompt_lens, output_lens = workload.prompt.spread(count), workload.output.spread(count)
    order = random.Random(workload.name)
    order.shuffle(prompt_lens)
    order.shuffle(output_lens)
    shared = _token_ids(random.Random(f"{seed}/{workload.name}"), workload.num_shared_tokens, vocab_size)
    own = random.Random(f"{seed}/{workload.name}/{round_name}")
    return [
        CompletionRequest(
            prompt_token_ids=shared + _token_ids(own, prompt_len, vocab_size), num_output_tokens=output_len
        )
        for prompt_len, output_len in zip(prompt_lens, output_lens, strict=True)
    ]


def _token_ids(rng: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(NUM_RESERVED_IDS, vocab_size), k=count))
