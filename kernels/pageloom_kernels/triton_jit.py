"""`triton.jit` with a type: Triton ships none. Imported only by kernels, so a CPU worker never loads Triton."""

from collections.abc import Callable
from typing import Protocol

import triton
import triton.language as tl


class Kernel(Protocol):
    """What the decorator leaves: launched from the host with a grid, or called inside another kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def __call__(self, *args: tl.tensor, **constants: tl.constexpr) -> tl.tensor: ...


def jit(*, varying: tuple[str, ...] = ()) -> Callable[[Callable[..., object]], Kernel]:
    """Compile a function for the GPU when it is first launched.

    `varying` names the integers that change from step to step: without it, the first step in which one of them is 1
    or divisible by 16 would wait for a variant made for that.
    """

    def decorate(function: Callable[..., object]) -> Kernel:
        kernel: Kernel = triton.jit(function, do_not_specialize=varying)
        return kernel

    return decorate
