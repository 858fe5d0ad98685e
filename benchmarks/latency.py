"""How are throughput and latencies defined, and how are they summed up? Pure.

The definitions are those of `vllm bench serve`, which guidellm shares under other names:

- output tokens/s: output tokens of a round divided by its duration, which runs from the first
  request sent to the last token received. The figure of a workload is the median of its rounds.
- TTFT, time to first token: from sending the request on an open connection to the first chunk that
  brings tokens.
- ITL, inter-token latency: the gap between one chunk that brings tokens and the next of the same
  request; one sample per gap, all requests of all rounds pooled. A chunk may bring several tokens
  (`tokens_per_chunk` says how many on average): this is the wait that a reader sees.
- TPOT, time per output token: (last token - first token) / (output tokens - 1), one sample per
  request. guidellm calls this one inter-token latency.

Output tokens are counted by the server's usage, never by chunks. Percentiles interpolate linearly
between samples, as numpy's default does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Self

from benchmarks.completions import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Seconds."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> Self | None:
        """None without samples: a request of one token has no gap between tokens."""
        values = list(samples)
        if not values:
            return None
        if len(values) == 1:
            return cls(mean=values[0], p50=values[0], p99=values[0])
        percentiles = quantiles(values, n=100, method="inclusive")
        return cls(mean=fmean(values), p50=percentiles[49], p99=percentiles[98])


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All requests of one round, and the CPU time that this client used meanwhile."""

    completions: tuple[Completion, ...]
    client_cpu_s: float

    @property
    def duration_s(self) -> float:
        first = min(completion.sent_s for completion in self.completions)
        return max(completion.arrival_s[-1] for completion in self.completions) - first


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one workload. `*_per_s` are medians of the rounds; `client_cpu_ratio` is of one core."""

    num_requests: int
    output_tokens_per_s: float
    output_tokens_per_s_by_round: tuple[float, ...]
    prompt_tokens_per_s: float
    ttft_s: Distribution | None
    itl_s: Distribution | None
    tpot_s: Distribution | None
    cached_prompt_ratio: float
    tokens_per_chunk: float
    client_cpu_ratio: float


def summarize(rounds: Sequence[Round]) -> Summary:
    completions = [completion for each in rounds for completion in each.completions]
    output_rates = tuple(_num_output_tokens(each.completions) / each.duration_s for each in rounds)
    num_prompt_tokens = sum(completion.num_prompt_tokens for completion in completions)
    return Summary(
        num_requests=len(completions),
        output_tokens_per_s=median(output_rates),
        output_tokens_per_s_by_round=output_rates,
        prompt_tokens_per_s=median(
            sum(completion.num_prompt_tokens for completion in each.completions) / each.duration_s for each in rounds
        ),
        ttft_s=Distribution.of(completion.arrival_s[0] - completion.sent_s for completion in completions),
        itl_s=Distribution.of(
            later - earlier for completion in completions for earlier, later in pairwise(completion.arrival_s)
        ),
        tpot_s=Distribution.of(_tpot_s(completion) for completion in completions if completion.num_output_tokens > 1),
        cached_prompt_ratio=sum(completion.num_cached_tokens for completion in completions) / num_prompt_tokens,
        tokens_per_chunk=_num_output_tokens(completions) / sum(len(completion.arrival_s) for completion in completions),
        client_cpu_ratio=sum(each.client_cpu_s for each in rounds) / sum(each.duration_s for each in rounds),
    )


def _num_output_tokens(completions: Sequence[Completion]) -> int:
    return sum(completion.num_output_tokens for completion in completions)


def _tpot_s(completion: Completion) -> float:
    return (completion.arrival_s[-1] - completion.arrival_s[0]) / (completion.num_output_tokens - 1)
