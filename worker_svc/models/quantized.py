"""Which weights of a model stay in the blocks of their file, and where are those read to?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom_kernels.cpu.weights import PackedMatrix, WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDestination:
    """Stands where a tensor to read into would: the blocks of one checkpoint tensor go to the end of `matrix`."""

    store: WeightStore
    matrix: PackedMatrix
    ggml_type: int
    shape: tuple[int, int]  # [out_features, in_features]

    def append(self, blocks: NDArray[np.uint8]) -> None:
        """Takes the whole tensor. Raises MemoryError."""
        self.store.append(self.matrix, self.ggml_type, blocks)


def quantized_matrix(
    store: WeightStore,
    ggml_types: Mapping[str, int],
    names: Sequence[str],
    sizes: Sequence[int],
    in_features: int,
    *,
    codes_per_input: int,
) -> tuple[PackedMatrix, dict[str, BlockDestination]] | None:
    """The matrix that the named tensors of `sizes` outputs are to form, below each other, and where each goes.

    None if one of them is not quantized, or in a way that there are no kernels for: `ggml_types` has the others.
    """
    if not all(name in ggml_types and store.supports(ggml_types[name], in_features) for name in names):
        return None
    matrix = store.quantized(in_features, codes_per_input=codes_per_input)
    return matrix, {
        name: BlockDestination(store=store, matrix=matrix, ggml_type=ggml_types[name], shape=(size, in_features))
        for name, size in zip(names, sizes, strict=True)
    }
