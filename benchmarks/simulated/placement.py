"""What is placement by cached prefix worth? Hit ratio and latency of each policy over several workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pageloom.policies import Placement
from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation.report import Distribution
from scheduler_svc.simulation.simulate import simulate
from scheduler_svc.simulation.trace import Trace

NUM_WORKERS = 4
GPU, MODEL = "h200", "llama-3.1-8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One placement; `num_kv_tokens` is the memory of one worker."""

    placement: str
    num_kv_tokens: int
    prefix_hit_ratio: float
    ttft_s: Distribution
    busy_share: float


def measure(trace: Trace, num_blocks: int | None) -> Iterator[Figures]:
    """Placement after placement; `num_blocks` of each worker, by default what the GPU has room for."""
    for placement in (Placement.round_robin, Placement.least_loaded, Placement.cache_aware):
        config = SimulationConfig(
            trace="",
            gpu=GPU,
            model=MODEL,
            num_workers=NUM_WORKERS,
            block_size=128,
            num_blocks=num_blocks,
            placement=placement,
        )
        report = simulate(config, trace).report
        assert report.ttft_s is not None
        yield Figures(
            placement=placement,
            num_kv_tokens=report.memory.num_tokens // NUM_WORKERS,
            prefix_hit_ratio=report.prefix_hit_ratio,
            ttft_s=report.ttft_s,
            busy_share=report.busy_share,
        )
