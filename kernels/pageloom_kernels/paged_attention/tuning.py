"""Launch shapes of the attention kernels: pure functions of the GPU and the problem, never tuned at run time."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What the choice of a launch shape needs to know about the device."""

    capability: int  # 80, 90, 100: compute capability without the dot
    num_sms: int

    @staticmethod
    def of(device: torch.device) -> "Gpu":
        properties = torch.cuda.get_device_properties(device)
        return Gpu(capability=properties.major * 10 + properties.minor, num_sms=properties.multi_processor_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    num_programs: int  # to aim for: segments times KV heads
    min_segment_tokens: int  # at least `tile`; a shorter segment costs more to start and to reduce than it gains
    tile: int  # KV tokens per step of the inner loop
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTuning:
    block_m: int  # rows: query tokens times the group's heads
    tile: int
    num_warps: int
    num_stages: int


def decode_tuning(gpu: Gpu, *, head_dim: int, block_size: int, itemsize: int) -> DecodeTuning:
    # 16 KB of K and as much of V per stage in 16-bit; one block if it holds that.
    tile = max(16, 16384 // (head_dim * itemsize))
    return DecodeTuning(num_programs=4 * gpu.num_sms, min_segment_tokens=256, tile=tile, num_warps=4, num_stages=3)


def prefill_tuning(gpu: Gpu, *, head_dim: int, rows: int, itemsize: int) -> PrefillTuning:
    return PrefillTuning(block_m=128, tile=64, num_warps=8, num_stages=3)
