"""A model's weights in the library: matrices packed once into the layout of the kernels, and what they make up."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pageloom_kernels.cpu.thread_pool import ThreadPool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeights:
    """A packed matrix, and its bias [out_features] bfloat16."""

    matrix: PackedMatrix
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """One feed-forward network; gate and up are below each other in `gate_up`."""

    gate_up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExpertWeights:
    """A network that every token takes, scaled by the one output of `gate`. There are no biases."""

    gate_up: PackedMatrix
    down: PackedMatrix
    gate: PackedMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWeights:
    """A mixture of networks, each with gate and up below each other in its `gate_up`. There are no biases."""

    experts_per_token: int
    normalize_weights: bool
    router: PackedMatrix
    gate_up: tuple[PackedMatrix, ...]
    down: tuple[PackedMatrix, ...]
    shared: SharedExpertWeights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; queries, keys and values are below each other in `qkv`. Norms are bfloat16."""

    attention_norm: Tensor  # [hidden_size]
    qkv: LinearWeights
    query_norm: Tensor | None  # [head_dim], of each head by itself
    key_norm: Tensor | None
    output: LinearWeights
    mlp_norm: Tensor  # [hidden_size]
    mlp: MlpWeights | ExpertsWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """A whole model. `head` is the embedding itself if they are tied."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    embedding: PackedMatrix
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden_size] bfloat16
    head: PackedMatrix
    cos: Tensor  # [positions, head_dim // 2] float32
    sin: Tensor


class PackedMatrix:
    """A weight in the layout of the kernels. It lives as long as the store that made it."""

    def __init__(self, handle: int, out_features: int, in_features: int) -> None:
        self.handle = handle
        self.out_features = out_features
        self.in_features = in_features


class WeightStore:
    """The memory of a model's matrices."""

    def __init__(self, pool: ThreadPool) -> None:
        self.pool = pool
        self._functions = pool.library.functions
        self._handle = allocated(self._functions.pageloom_weights_create())
        weakref.finalize(self, self._functions.pageloom_weights_free, self._handle).atexit = False

    @property
    def num_bytes(self) -> int:
        count: int = self._functions.pageloom_weights_bytes(self._handle)
        return count

    def pack(self, weight: Tensor) -> PackedMatrix:
        """Copies a contiguous bfloat16 [out_features, in_features] into the kernels' layout. in_features must be even.

        Raises MemoryError.
        """
        out_features, in_features = weight.shape
        handle = self._functions.pageloom_bf16_matrix(
            self.pool.handle, self._handle, weight.data_ptr(), out_features, in_features
        )
        return PackedMatrix(allocated(handle), out_features, in_features)

    def supports(self, ggml_type: int, in_features: int) -> bool:
        """Whether rows of these quantized blocks can stay as they are."""
        supported: bool = self._functions.pageloom_quant_supports(ggml_type, in_features)
        return supported

    def quantized(self, in_features: int, *, codes_per_input: int = 1) -> PackedMatrix:
        """A matrix without outputs, to which `append` adds. What it is multiplied by is quantized to `codes_per_input`
        bytes, 1 or 2, for each input. Raises MemoryError."""
        handle = self._functions.pageloom_quant_matrix(self._handle, in_features, codes_per_input)
        return PackedMatrix(allocated(handle), 0, in_features)

    def append(self, matrix: PackedMatrix, ggml_type: int, blocks: NDArray[np.uint8]) -> None:
        """Copies rows of ggml blocks, [outputs, bytes] without gaps, into a matrix that `quantized` made, below what
        it holds. The type must be supported. Raises MemoryError."""
        assert blocks.flags.c_contiguous
        done = self._functions.pageloom_quant_append(
            self.pool.handle, self._handle, matrix.handle, ggml_type, blocks.ctypes.data, len(blocks)
        )
        if not done:
            raise MemoryError("there is no memory for the model")
        matrix.out_features += len(blocks)


def allocated(handle: int | None) -> int:
    """Raises MemoryError unless the library had the memory to make it."""
    if not handle:
        raise MemoryError("there is no memory for the model")
    return handle
