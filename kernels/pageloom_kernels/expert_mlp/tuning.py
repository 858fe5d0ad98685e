"""Launch shapes of the expert kernels: pure functions of the problem, never tuned at run time.

They were chosen without a GPU at hand, as those of paged attention were. A sweep may replace the numbers.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """What a program computes and how: [block_m, block_n] outputs, `block_k` inputs at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    def launch_options(self, device: torch.device) -> dict[str, int | bool]:
        """What either kernel takes besides its tensors and their sizes."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            # Only Triton's interpreter runs on CPU tensors, and its products of bf16 are wrong.
            "UPCAST": device.type == "cpu",
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTuning:
    """Both have the same `block_m`: they work on the same blocks."""

    gate_up: TileShape  # of gate as of up, so there are twice as many products
    down: TileShape


def expert_tuning(*, num_pairs: int, num_experts: int, itemsize: int) -> ExpertTuning:
    """By the rows that an expert gets if tokens spread evenly: more than one block each costs weights read again."""
    if itemsize == 4:
        # Exact fp32 products do not use the tensor cores and need their registers.
        shape = TileShape(block_m=32, block_n=32, block_k=32, num_warps=4, num_stages=2)
        return ExpertTuning(gate_up=shape, down=shape)
    rows = num_pairs / num_experts
    if rows <= 16:
        # Decodes read every weight once: what counts is the bytes in flight.
        shape = TileShape(block_m=16, block_n=64, block_k=64, num_warps=4, num_stages=4)
        return ExpertTuning(gate_up=shape, down=shape)
    if rows <= 64:
        shape = TileShape(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3)
        return ExpertTuning(gate_up=shape, down=shape)
    return ExpertTuning(
        gate_up=TileShape(block_m=128, block_n=64, block_k=64, num_warps=8, num_stages=3),
        down=TileShape(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3),
    )
