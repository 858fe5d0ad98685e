"""Products of packed matrices, called as the library takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from pageloom_kernels.cpu.library import CpuLibrary
from pageloom_kernels.cpu.thread_pool import ThreadPool
from pageloom_kernels.cpu.weights import PackedMatrix, WeightStore


class Multiplier:
    """One matrix in the library's layout: bfloat16, or parts below each other that are quantized."""

    def __init__(
        self,
        library: CpuLibrary,
        weight: Tensor | Sequence[tuple[GGMLQuantizationType, NDArray[np.uint8]]],
        *,
        in_features: int = 0,
        codes_per_input: int = 1,
        num_threads: int = 2,
    ) -> None:
        self._functions = library.functions
        self._pool = ThreadPool(library, num_threads)
        self.store = WeightStore(self._pool)
        if isinstance(weight, Tensor):
            self._matrix: PackedMatrix = self.store.pack(weight)
        else:
            self._matrix = self.store.quantized(in_features, codes_per_input=codes_per_input)
            for kind, blocks in weight:
                assert self.store.supports(kind, in_features)
                self.store.append(self._matrix, kind, blocks)

    def rounded(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        # One column more, which must stay as it is.
        result = torch.full((len(x), self._matrix.out_features + 1), torch.nan, dtype=torch.bfloat16)
        self._multiply(x, bias=bias, y=result)
        assert result[:, -1].isnan().all()
        return result[:, :-1]

    def sums(self, x: Tensor) -> Tensor:
        result = torch.full((len(x), self._matrix.out_features), torch.nan)
        self._multiply(x, sums=result)
        return result

    def winners(self, x: Tensor) -> Tensor:
        result = torch.full((len(x),), -2)
        self._multiply(x, winners=result)
        return result

    def row(self, index: int) -> Tensor:
        result = torch.full((self._matrix.in_features,), torch.nan, dtype=torch.bfloat16)
        self._functions.pageloom_matrix_row(self._matrix.handle, index, result.data_ptr())
        return result

    def _multiply(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        y: Tensor | None = None,
        sums: Tensor | None = None,
        winners: Tensor | None = None,
    ) -> None:
        assert self._functions.pageloom_matrix_product(
            self._pool.handle, self._matrix.handle, x.data_ptr(), x.stride(0), len(x), _pointer(bias),
            _pointer(y), 0 if y is None else y.stride(0), _pointer(sums), _pointer(winners),
        )  # fmt: skip


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
