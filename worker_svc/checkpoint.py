"""What the loader needs of a checkpoint, whatever its file format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker_svc.models.config import LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The entries `start` to `stop` - 1 of a tensor along `dim`, 0 or 1, and all along the other."""

    dim: int
    start: int
    stop: int


class Weights(Protocol):
    """Tensors on disk, under the names that a Hugging Face checkpoint gives them.

    Every method raises ModelLoadError, naming file and tensor, if the file is not what it should be.
    """

    @property
    def path(self) -> Path:
        """The file, or the folder of several."""

    @property
    def names(self) -> Collection[str]: ...

    @property
    def dtype(self) -> torch.dtype | None:
        """Element type of most of the weights; None if they are quantized."""

    def num_bytes(self, name: str) -> int:
        """Size in the file."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def describe(self, name: str) -> str:
        """The tensor in words, with its file, for error messages."""

    def read(self, name: str, out: Tensor, part: Part | None = None) -> None:
        """Copies the tensor, or a part of it, into `out` of the same shape, converting its elements."""


class QuantizedWeights(Protocol):
    """The same tensors, where they can be had as the blocks of the file."""

    @property
    def ggml_types(self) -> Mapping[str, int]:
        """By the name of the tensor. Tensors that are missing here can only be converted, by Weights.read."""

    def read_blocks(self, name: str) -> NDArray[np.uint8]:
        """[rows, bytes], without gaps. Raises ModelLoadError as Weights does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on disk: what it is, and its weights."""

    architecture: str
    config: LlamaConfig
    eos_token_ids: tuple[int, ...]
    # Longest context whose attention is full; None if it always is.
    sliding_window: int | None
    weights: Weights
    # None: the file is not quantized.
    quantized: QuantizedWeights | None
    # All that decides what the model computes.
    files: tuple[Path, ...]
