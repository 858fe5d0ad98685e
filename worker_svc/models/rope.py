"""Rotary position embedding: which angle does each dimension pair turn by at each position?

The scaling types are those of transformers' `modeling_rope_utils`, computed in the same float32 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a constant."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a smooth transition between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): interpolation by frequency, and `attention_factor` on cos and sin."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyDivisors:
    """One divisor for each dimension pair, as GGUF files carry for Llama 3.1."""

    divisors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyDivisors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Base wavelength and how it is scaled; None leaves it."""

    theta: float
    scaling: RopeScaling | None = None


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's recommended temperature for a context that is `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rotary_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [num_positions, head_dim // 2] float32 on the CPU."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    amplitude = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
    return angles.cos() * amplitude, angles.sin() * amplitude


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each dimension pair, [head_dim // 2] float32."""
    wavelengths = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    inv_freq = 1.0 / wavelengths
    match rope.scaling:
        case None:
            return inv_freq
        case LinearScaling(factor=factor):
            return inv_freq / factor
        case FrequencyDivisors(divisors=divisors):
            return inv_freq / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(inv_freq, rope.scaling)
        case YarnScaling():
            return _yarn(wavelengths, rope.theta, head_dim, rope.scaling)
        case _:
            assert_never(rope.scaling)


def _llama3(inv_freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    old_context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / inv_freq
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    is_low = wavelengths > old_context / low
    is_high = wavelengths < old_context / high
    smooth = (old_context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    return torch.where(is_low, inv_freq / scaling.factor, torch.where(is_high, inv_freq, blended))


def _yarn(wavelengths: Tensor, theta: float, head_dim: int, scaling: YarnScaling) -> Tensor:
    def dim_of(num_rotations: float) -> float:
        rotations = scaling.original_max_position_embeddings / (num_rotations * 2 * math.pi)
        return head_dim * math.log(rotations) / (2 * math.log(theta))

    low, high = dim_of(scaling.beta_fast), dim_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of width 0 has no slope
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
