"""Which implementation of the operators runs on a device: decided once per device, from its type alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    # The operators' packages import this module.
    from pageloom_kernels.paged_attention.batch import AttentionBatch


class PagedAttention(Protocol):
    def __call__(self, query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor: ...


class RotaryWriteKv(Protocol):
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        batch: AttentionBatch,
    ) -> Tensor: ...


class RmsNorm(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor) -> Tensor: ...


class ExpertMlp(Protocol):
    def __call__(self, x: Tensor, gate_up: Tensor, down: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """One implementation of every public operator; arguments have been checked before they get here."""

    paged_attention: PagedAttention
    rotary_write_kv: RotaryWriteKv
    rms_norm: RmsNorm
    silu_mul: SiluMul
    expert_mlp: ExpertMlp


@cache
def operators(device: torch.device) -> Operators:
    return triton_operators(device) if device.type == "cuda" else reference_operators()


def triton_operators(device: torch.device) -> Operators:
    """The Triton kernels. Imported here because Triton costs 70 MB of memory that a CPU worker can do without."""
    from pageloom_kernels.expert_mlp.launch import expert_mlp
    from pageloom_kernels.paged_attention.launch import paged_attention
    from pageloom_kernels.paged_attention.rotary_write_kernel import rotary_write_kv
    from pageloom_kernels.paged_attention.tuning import Gpu
    from pageloom_kernels.rms_norm.kernel import rms_norm
    from pageloom_kernels.silu_mul.kernel import silu_mul

    return Operators(
        paged_attention=partial(paged_attention, gpu=Gpu.of(device)),
        rotary_write_kv=rotary_write_kv,
        rms_norm=rms_norm,
        silu_mul=silu_mul,
        expert_mlp=expert_mlp,
    )


def reference_operators() -> Operators:
    """The plain PyTorch twins: they run on any device."""
    from pageloom_kernels.expert_mlp.reference import expert_mlp
    from pageloom_kernels.paged_attention.reference import paged_attention
    from pageloom_kernels.paged_attention.rotary_write_reference import rotary_write_kv
    from pageloom_kernels.rms_norm.reference import rms_norm
    from pageloom_kernels.silu_mul.reference import silu_mul

    return Operators(
        paged_attention=paged_attention,
        rotary_write_kv=rotary_write_kv,
        rms_norm=rms_norm,
        silu_mul=silu_mul,
        expert_mlp=expert_mlp,
    )
