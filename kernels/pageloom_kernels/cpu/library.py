"""Which library of kernels does this machine run, and what are its functions?"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import torch

from pageloom_kernels.cpu import structs

_FOLDER = Path(__file__).parent / "lib"
_AVX2 = ("avx2", "fma3", "f16c")
_AVX512 = (*_AVX2, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl")
# The capabilities that each instruction set is compiled for, the fastest first.
_CAPABILITIES = {
    "avx512_bf16": (*_AVX512, "avx512_vnni", "avx512_bf16"),
    "avx512": _AVX512,
    "avx2": _AVX2,
}
_FORCED = "PAGELOOM_CPU_ISA"
_BUILD = "`python kernels/compile_cpu.py` builds them, and so do `make serve` and installing pageloom again"

# The two that many functions start with: a pool, and what it works on.
_POINTERS = (c_void_p, c_void_p)
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "pool_create": (c_void_p, (c_int, POINTER(c_int))),
    "pool_free": (None, (c_void_p,)),
    "weights_create": (c_void_p, ()),
    "weights_free": (None, (c_void_p,)),
    "weights_bytes": (c_size_t, (c_void_p,)),
    "bf16_matrix": (c_void_p, (*_POINTERS, c_void_p, c_int64, c_int64)),
    "quant_matrix": (c_void_p, (c_void_p, c_int64, c_int)),
    "quant_supports": (c_bool, (c_int, c_int64)),
    "quant_append": (c_bool, (*_POINTERS, c_void_p, c_int, c_void_p, c_int64)),
    "model_create": (c_void_p, (c_void_p, POINTER(structs.ModelSpec))),
    "model_free": (None, (c_void_p,)),
    "forward": (c_bool, (*_POINTERS, POINTER(structs.StepInputs), POINTER(c_void_p), c_void_p)),
    "logits": (c_bool, (*_POINTERS, c_void_p, c_int64, c_void_p)),
    "most_likely": (c_bool, (*_POINTERS, c_void_p, c_int64, c_void_p)),
    "embed": (None, (*_POINTERS, c_void_p, c_int64, c_void_p)),
    "memory_ahead_create": (c_void_p, (c_void_p, c_int64, c_int64, c_int64)),
    "memory_ahead_free": (None, (c_void_p,)),
    "memory_ahead_used": (None, (c_void_p, c_int64)),
    "memory_ahead_resident": (c_int64, (c_void_p,)),
    "matrix_row": (None, (c_void_p, c_int64, c_void_p)),
    "matrix_product": (
        c_bool,
        (*_POINTERS, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_void_p),
    ),
    "rms_norm": (None, (c_void_p, c_void_p, c_void_p, c_float, c_int64, c_int64, c_void_p)),
    "silu_mul": (None, (c_void_p, c_int64, c_int64, c_void_p)),
    "expert_mlp": (c_bool, (c_void_p, POINTER(structs.Experts), c_void_p, c_int64, c_void_p)),
    "rotary_write": (None, (POINTER(structs.RotaryWrite), c_void_p, c_void_p, c_int64, c_int64)),
    "attention": (
        c_bool,
        (
            c_void_p,
            POINTER(structs.AttentionShape),
            POINTER(structs.AttentionBatch),
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
            c_int64,
        ),
    ),
}


class NoCpuLibrary(Exception):
    """The message says in one line why the kernels cannot run here."""


class CpuLibrary:
    """`functions` are those of src/library.cpp. A call does not hold the interpreter's lock."""

    def __init__(self, instruction_set: str, path: Path) -> None:
        self.instruction_set = instruction_set
        self.functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.functions, f"pageloom_{name}")
            function.restype, function.argtypes = result, list(arguments)


@cache
def load_cpu_library() -> CpuLibrary:
    """The library for the best instruction set that this machine has, or for the one that PAGELOOM_CPU_ISA names
    ("none" stands for a machine without any). Raises NoCpuLibrary."""
    name = _choose(os.environ.get(_FORCED, ""))
    path = _FOLDER / f"pageloom_cpu.{name}.so"
    if not path.exists():
        raise NoCpuLibrary(f"they were not built when pageloom was installed, which needs a C++ compiler; {_BUILD}")
    try:
        return CpuLibrary(name, path)
    except AttributeError as error:
        raise NoCpuLibrary(f"{path.name} is older than the code that calls it ({error}); {_BUILD}") from None
    except OSError as error:
        raise NoCpuLibrary(f"{path.name} cannot be loaded: {error}; {_BUILD}") from None


def _choose(forced: str) -> str:
    capabilities = torch.cpu.get_capabilities()
    fitting = [name for name, needed in _CAPABILITIES.items() if all(capabilities.get(flag) for flag in needed)]
    if forced and forced not in (*_CAPABILITIES, "none"):
        raise NoCpuLibrary(f"{_FORCED}={forced} is none of {', '.join(_CAPABILITIES)} and none")
    if forced and forced not in fitting:
        raise NoCpuLibrary(f"{_FORCED}={forced}, which is not what this processor has")
    if not fitting:
        raise NoCpuLibrary("this processor has no AVX2")
    return forced or fitting[0]
