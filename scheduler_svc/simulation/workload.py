"""What is sent? A trace by name, made up or scaled, and the requests that stand for its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pageloom.errors import InvalidConfig
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from pageloom.simulated_tokens import NUM_RESERVED_TOKENS
from scheduler_svc.simulation.trace import EXCERPTS, MAX_LENGTH, Trace, TraceRequest, read_trace

DEFAULT_NUM_SYNTHETIC_REQUESTS = 1000
DEFAULT_SYNTHETIC_RATE = 2.0
# Below it, blocks of different hash ids might be equal by chance.
_MIN_HASH_BLOCK_LEN = 8
_MIN_POOL_BITS = 16
_SCRAMBLE = 0x9E3779B1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Log-normal lengths with the given mean and standard deviation of the logarithm, between 1 and `longest`."""

    prompt_mean: float
    prompt_sigma: float
    output_mean: float
    output_sigma: float
    longest: int


# Means of the two datasets in the PagedAttention paper (Kwon et al., SOSP'23, figure 11), which gives no more than
# histograms: the spreads, and the cut that leaves prompt and output room in OPT's 2,048 positions, are ours.
DATASETS = {
    "sharegpt": Lengths(prompt_mean=161.31, prompt_sigma=1.2, output_mean=337.99, output_sigma=0.9, longest=1024),
    "alpaca": Lengths(prompt_mean=19.31, prompt_sigma=0.5, output_mean=58.45, output_sigma=0.9, longest=1024),
}


def load_trace(name: str, *, num_requests: int | None, request_rate: float | None, seed: int) -> Trace:
    """A trace by dataset, excerpt or path. For a dataset arrivals are Poisson; otherwise `request_rate` stretches or
    squeezes the trace's own to that mean. Raises InvalidConfig."""
    if name in DATASETS:
        return synthetic_trace(
            name,
            num_requests=num_requests or DEFAULT_NUM_SYNTHETIC_REQUESTS,
            request_rate=request_rate or DEFAULT_SYNTHETIC_RATE,
            seed=seed,
        )
    trace = read_trace(EXCERPTS.get(name) or Path(name))
    if num_requests is not None:
        trace = Trace(name=trace.name, requests=trace.requests[:num_requests])
    return trace if request_rate is None else at_rate(trace, request_rate)


def synthetic_trace(name: str, *, num_requests: int, request_rate: float, seed: int) -> Trace:
    """Poisson arrivals with lengths like a dataset's; the sample's means are exactly the dataset's, up to rounding."""
    lengths = DATASETS[name]
    generator = np.random.default_rng(seed)
    arrivals_s = np.cumsum(generator.exponential(1 / request_rate, num_requests)) - 1 / request_rate
    prompts = _lengths(generator, num_requests, lengths.prompt_mean, lengths.prompt_sigma, lengths.longest)
    outputs = _lengths(generator, num_requests, lengths.output_mean, lengths.output_sigma, lengths.longest)
    columns = zip(np.maximum(arrivals_s, 0.0).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return Trace(name=name, requests=tuple(TraceRequest(*row) for row in columns))


def at_rate(trace: Trace, request_rate: float) -> Trace:
    """Stretched or squeezed to a mean of so many requests a second. Raises InvalidConfig."""
    if trace.span_s == 0:
        raise InvalidConfig(f"the requests of {trace.name} come all at once, so they have no rate to change")
    return scale_time(trace, (len(trace.requests) - 1) / trace.span_s / request_rate)


def scale_time(trace: Trace, factor: float) -> Trace:
    """Arrivals `factor` times as far apart."""
    requests = [request._replace(arrival_s=request.arrival_s * factor) for request in trace.requests]
    return Trace(name=trace.name, requests=tuple(requests), hash_block_len=trace.hash_block_len)


def scale_lengths(trace: Trace, factor: float) -> Trace:
    """Prompts and outputs `factor` times as long, and so the blocks that hash ids stand for. Raises InvalidConfig."""
    block_len = trace.hash_block_len * factor
    if any(request.hash_ids for request in trace.requests) and (
        block_len != int(block_len) or block_len < _MIN_HASH_BLOCK_LEN
    ):
        raise InvalidConfig(
            f"--length-scale {factor:g} makes blocks of {block_len:g} tokens out of {trace.hash_block_len}; "
            f"they must be whole and at least {_MIN_HASH_BLOCK_LEN} tokens long"
        )
    longest = max(max(request.num_prompt_tokens, request.num_output_tokens) for request in trace.requests)
    if longest * factor > MAX_LENGTH:
        raise InvalidConfig(
            f"--length-scale {factor:g} makes a prompt or output of {longest} tokens longer than {MAX_LENGTH}"
        )
    requests = [
        request._replace(
            num_prompt_tokens=max(1, round(request.num_prompt_tokens * factor)),
            num_output_tokens=max(1, round(request.num_output_tokens * factor)),
        )
        for request in trace.requests
    ]
    return Trace(name=trace.name, requests=tuple(requests), hash_block_len=max(1, int(block_len)))


def assign_tenants(trace: Trace, weights: dict[str, float], seed: int) -> Trace:
    """Gives each request a tenant, at random, with the given weights."""
    relative = np.array(list(weights.values())) / max(weights.values())
    shares = relative / relative.sum()
    drawn = np.random.default_rng(seed).choice(len(weights), len(trace.requests), p=shares).tolist()
    names = list(weights)
    requests = [request._replace(tenant=names[i]) for request, i in zip(trace.requests, drawn, strict=True)]
    return Trace(name=trace.name, requests=tuple(requests), hash_block_len=trace.hash_block_len)


class PromptPool:
    """Makes prompts that are equal exactly where their hash ids are.

    Every block is a window of one long list of random tokens, at a place of its own. Prompts are slices of
    that list, so its integers are shared by all: a queue of long prompts takes 8 bytes a token.
    """

    def __init__(self, trace: Trace, vocab_size: int) -> None:
        highest_id = max((max(request.hash_ids, default=0) for request in trace.requests), default=0)
        self._mask = (1 << max(_MIN_POOL_BITS, highest_id.bit_length(), len(trace.requests).bit_length())) - 1
        self._block_len = trace.hash_block_len
        longest = max((request.num_prompt_tokens for request in trace.requests), default=0)
        # Its own seed: equal ids must be equal tokens in every run.
        drawn = np.random.default_rng(0).integers(NUM_RESERVED_TOKENS, vocab_size, self._mask + 1).tolist()
        while len(drawn) < self._mask + 1 + longest:
            drawn += drawn[:longest]
        self._tokens: list[int] = drawn

    def prompt(self, index: int, request: TraceRequest) -> tuple[int, ...]:
        """The prompt of the trace's request number `index`."""
        if not request.hash_ids:
            start = self._place(index)
            return tuple(self._tokens[start : start + request.num_prompt_tokens])
        tokens: list[int] = []
        for hash_id in request.hash_ids:
            start = self._place(hash_id)
            tokens += self._tokens[start : start + self._block_len]
        return tuple(tokens[: request.num_prompt_tokens])

    def _place(self, number: int) -> int:
        # Multiplying by an odd number permutes the numbers below a power of two.
        return number * _SCRAMBLE & self._mask


def generate_requests(
    trace: Trace, pool: PromptPool, *, max_tokens: int, max_model_len: int
) -> Iterator[tuple[float, GenerateRequest]]:
    """(arrival, request) of each row; the seed is the row's number, by which a simulated device knows its length.

    Clients ask for `max_tokens`, or what the context leaves, or what the trace has if that is more; outputs end
    where the trace's did.
    """
    for index, row in enumerate(trace.requests):
        asked = max(min(max_tokens, max_model_len - row.num_prompt_tokens), row.num_output_tokens)
        yield (
            row.arrival_s,
            GenerateRequest(
                request_id=str(index),
                prompt_token_ids=pool.prompt(index, row),
                sampling=SamplingParams(max_tokens=asked, seed=index),
                tenant=row.tenant,
            ),
        )


def _lengths(generator: np.random.Generator, count: int, mean: float, sigma: float, longest: int) -> NDArray[np.int64]:
    values = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    # Cutting the tail off lowers the mean, and a small sample has its own; a few rounds bring it back.
    for _ in range(8):
        values = np.clip(values * (mean / values.mean()), 1, longest)
    return np.rint(values).astype(np.int64)
