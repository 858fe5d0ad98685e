"""What is the prefix cache worth, and what does it cost? Speed-up of prefill, cost without hits, hits of a trace."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation.simulate import simulate
from scheduler_svc.simulation.trace import Trace, TraceRequest
from scheduler_svc.simulation.workload import load_trace

PREFIX_LEN = 1024
OWN_LENS = (128, 256)
# The first request leaves the prefix in the cache; the others come once it has.
_WARM_S = 60.0
# (GPU, model, requests at once): one prompt alone is enough to keep the CPU busy with computing.
HARDWARE = (("h200", "llama-3-8b", 64), ("a100-80gb", "llama-3-8b", 64), ("cpu-2core", "smollm2-135m", 4))
_COST_REQUESTS = 1500
_COST_ROUNDS = 3
# Room for every block of the trace.
_ALL_BLOCKS = 1_300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Time to prefill `num_requests` prompts of PREFIX_LEN shared and `own_len` own tokens, without and with the
    cache; `bound` is by the tokens that remain."""

    gpu: str
    model: str
    num_requests: int
    own_len: int
    plain_s: float
    cached_s: float

    @property
    def ratio(self) -> float:
        return self.plain_s / self.cached_s

    @property
    def bound(self) -> float:
        return (PREFIX_LEN + self.own_len) / self.own_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time that the simulation takes for a request which shares nothing, with the cache off and on: all that
    differs is the scheduler's part. `gpu_s` is the request's share of the simulated GPU's time."""

    plain_s: float
    cached_s: float
    gpu_s: float

    @property
    def share(self) -> float:
        return (self.cached_s - self.plain_s) / self.gpu_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Share of prompt tokens found, in the simulation and by a cache that is endless and instantaneous."""

    simulated: float
    infinite_tokens: float
    infinite_blocks: float


def speed_up(gpu: str, model: str, num_requests: int, own_len: int) -> SpeedUp:
    prompt_len = PREFIX_LEN + own_len
    # One more block id for each request's own end.
    rows = [TraceRequest(0.0, prompt_len, 1, (0, 1))]
    rows += [TraceRequest(_WARM_S, prompt_len, 1, (0, 2 + i)) for i in range(num_requests)]
    trace = Trace(name="shared prefix", requests=tuple(rows), hash_block_len=PREFIX_LEN)
    times = []
    for enable_prefix_caching in (False, True):
        config = SimulationConfig(trace="", gpu=gpu, model=model, enable_prefix_caching=enable_prefix_caching)
        times.append(float(simulate(config, trace).recorder.first_token_s.max()) - _WARM_S)
    return SpeedUp(
        gpu=gpu, model=model, num_requests=num_requests, own_len=own_len, plain_s=times[0], cached_s=times[1]
    )


def cost_without_hits(azure_trace: str) -> Cost:
    """Off and on in turn, the best of each: other work on the machine only adds."""
    trace = load_trace(azure_trace, num_requests=_COST_REQUESTS, request_rate=None, seed=0)
    best = {False: float("inf"), True: float("inf")}
    gpu_s = 0.0
    for _ in range(_COST_ROUNDS):
        for enabled in best:
            config = SimulationConfig(trace="", max_model_len=16_384, enable_prefix_caching=enabled)
            started_s = time.process_time()
            outcome = simulate(config, trace)
            best[enabled] = min(best[enabled], time.process_time() - started_s)
            assert outcome.report.prefix_hit_ratio < 0.01
            gpu_s = outcome.recorder.steps.busy_s
    count = len(trace.requests)
    return Cost(plain_s=best[False] / count, cached_s=best[True] / count, gpu_s=gpu_s / count)


def hits(trace: Trace) -> Hits:
    config = SimulationConfig(
        trace="", model="llama-3.1-8b", tensor_parallel_size=4, block_size=128, num_blocks=_ALL_BLOCKS
    )
    simulated = simulate(config, trace).report.prefix_hit_ratio
    infinite_tokens, infinite_blocks = infinite_hits(trace)
    return Hits(simulated=simulated, infinite_tokens=infinite_tokens, infinite_blocks=infinite_blocks)


def infinite_hits(trace: Trace) -> tuple[float, float]:
    """Share of prompt tokens, and of blocks of the trace, that a request before it had as its prefix too."""
    seen: set[int] = set()
    num_tokens = num_hit_tokens = num_blocks = num_hit_blocks = 0
    for request in trace.requests:
        hit = next((i for i, hash_id in enumerate(request.hash_ids) if hash_id not in seen), len(request.hash_ids))
        seen.update(request.hash_ids)
        num_blocks += len(request.hash_ids)
        num_hit_blocks += hit
        num_tokens += request.num_prompt_tokens
        num_hit_tokens += min(hit * trace.hash_block_len, request.num_prompt_tokens - 1)
    return num_hit_tokens / num_tokens, num_hit_blocks / num_blocks
