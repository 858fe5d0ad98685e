"""Launch shapes of the attention kernels: pure functions of the GPU and the problem, never tuned at run time.

They were chosen without a GPU at hand, so that no shape spills registers or overflows shared memory (compiled for
sm_80, sm_90 and sm_100) and enough bytes are in flight to hide memory's latency. A sweep may replace the numbers.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What the choice of a launch shape needs to know about the device."""

    capability: int  # compute capability without the dot: 80, 90, 100
    num_sms: int

    @classmethod
    def of(cls, device: torch.device) -> Self:
        properties = torch.cuda.get_device_properties(device)
        return cls(capability=properties.major * 10 + properties.minor, num_sms=properties.multi_processor_count)

    @property
    def has_warpgroup_mma(self) -> bool:
        """Hopper and datacenter Blackwell: accumulators and operands that others keep in registers live elsewhere."""
        return 90 <= self.capability < 120


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    num_programs: int  # to aim for: segments times KV heads
    min_segment_tokens: int  # at least `tile`; a shorter segment costs more to start and to reduce than it gains
    tile: int  # KV tokens per step of the inner loop
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTuning:
    block_m: int  # rows of the matrix products: query tokens times the heads of a group
    tile: int
    num_warps: int
    num_stages: int


def decode_tuning(gpu: Gpu, *, head_dim: int, itemsize: int) -> DecodeTuning:
    # Of K in a tile, and as many of V. Exact fp32 products need the registers of more.
    tile_elements = 2048 if itemsize == 4 else 8192
    # The load of K and V waits for that of the block id, so the pipeliner needs two stages for each tile in flight:
    # five keep two. An SM of Hopper holds three programs then, and four for each even out their ends.
    return DecodeTuning(
        num_programs=4 * gpu.num_sms,
        min_segment_tokens=256,
        tile=min(128, max(16, tile_elements // triton.next_power_of_2(head_dim))),
        num_warps=4,
        num_stages=5,
    )


def prefill_tuning(gpu: Gpu, *, head_dim: int, itemsize: int, rows: int) -> PrefillTuning:
    """`rows` is what the longest sequence offers: its query tokens times the heads of a group."""
    if itemsize == 4:
        # Exact fp32 products do not use the tensor cores and need their registers.
        return PrefillTuning(block_m=32, tile=16, num_warps=8, num_stages=2)
    if rows <= 16:
        return PrefillTuning(block_m=16, tile=64 if head_dim <= 128 else 32, num_warps=4, num_stages=3)
    tile = 64 if gpu.has_warpgroup_mma and head_dim <= 128 else 32
    if head_dim > 128:
        return PrefillTuning(block_m=64, tile=tile, num_warps=8, num_stages=3)
    if rows <= 512:
        return PrefillTuning(block_m=64, tile=tile, num_warps=4, num_stages=3)
    return PrefillTuning(block_m=128, tile=tile, num_warps=8, num_stages=3)
