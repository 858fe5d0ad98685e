"""`triton.jit` with a type: Triton ships none. Imported only by kernels, so a CPU worker never loads Triton."""

from collections.abc import Callable
from typing import Protocol

import triton
import triton.language as tl


class Kernel(Protocol):
    """What the decorator leaves: launched from the host with a grid, or called inside another kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def __call__(self, *args: tl.tensor, **constants: tl.constexpr) -> tl.tensor: ...


def jit(function: Callable[..., object]) -> Kernel:
    kernel: Kernel = triton.jit(function)
    return kernel
