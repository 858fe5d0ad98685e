"""The library of CPU kernels of each instruction set that this machine has."""

from __future__ import annotations

from functools import cache

import pytest

from pageloom_kernels.cpu.library import CpuLibrary, NoCpuLibrary, load_cpu_library

INSTRUCTION_SETS = ("avx512_bf16", "avx512", "avx2")


@cache
def load(instruction_set: str) -> CpuLibrary:
    """Skips the test where this machine does not have the instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGELOOM_CPU_ISA", instruction_set)
        try:
            return load_cpu_library.__wrapped__()
        except NoCpuLibrary as error:
            pytest.skip(str(error))
