"""Compiles what a launch would run, for a GPU that is not there, and reads what the binary needs.

The real host wrappers run on meta tensors with their kernel replaced by a `LaunchRecorder`, so that the arguments,
constants and options compiled here are the ones that are launched.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One call of a kernel: everything its compilation depends on."""

    kernel: JITFunction
    values: dict[str, object]  # every parameter, in order
    constants: dict[str, object]
    divisible: set[str]  # the names of parameters known to be divisible by 16
    options: dict[str, int]

    @property
    def source(self) -> ASTSource:
        types = {name: "constexpr" if name in self.constants else _type_of(v) for name, v in self.values.items()}
        divisible = [i for i, name in enumerate(types) if name in self.divisible - self.constants.keys()]
        attributes = {(i,): [["tt.divisibility", 16]] for i in divisible}
        return ASTSource(fn=self.kernel, signature=types, constexprs=self.constants, attrs=attributes)


class LaunchRecorder:
    """Stands in for a kernel; `kernel[grid](...)` records instead of launching."""

    def __init__(self, kernel: JITFunction):
        self.kernel = kernel
        self.launches: list[Launch] = []

    def __getitem__(self, grid):
        assert all(size >= 1 for size in grid), f"empty grid {grid}"
        return self._record

    def _record(self, *args, **kwargs):
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        params = {param.name: param for param in self.kernel.params}
        given = dict(zip(params, args, strict=False)) | kwargs
        values = {name: given.pop(name) for name in params}
        assert not given, f"arguments {list(given)} are not the kernel's"
        self.launches.append(
            Launch(
                kernel=self.kernel,
                values=values,
                constants={n: v for n, v in values.items() if params[n].is_constexpr or _is_one(v, params[n])},
                divisible={n for n, v in values.items() if _is_divisible(v, params[n])},
                options=options,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """What a compiled kernel needs from its GPU, and its instructions."""

    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    sass: str

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"\b{instruction}", self.sass))


def compile_launch(launch: Launch, capability: int, folder: Path) -> Binary:
    compiled = triton.compile(launch.source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    path = folder / f"{compiled.metadata.name}_{capability}_{compiled.metadata.hash}.cubin"
    path.write_bytes(compiled.asm["cubin"])
    usage = _run_tool("cuobjdump", "--dump-resource-usage", str(path))
    return Binary(
        registers=_usage(usage, "REG"),
        stack_bytes=_usage(usage, "STACK"),
        local_bytes=_usage(usage, "LOCAL"),
        shared_bytes=compiled.metadata.shared,
        sass=_run_tool("nvdisasm", "-c", str(path)),
    )


def _is_one(value, param) -> bool:
    """Triton compiles an integer argument that is 1 as a constant, unless told not to."""
    return type(value) is int and value == 1 and not param.do_not_specialize


def _is_divisible(value, param) -> bool:
    """Triton assumes so of aligned pointers, and of integers that are, unless told not to."""
    return isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0 and not param.do_not_specialize)


def _type_of(value) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _usage(text: str, resource: str) -> int:
    found = re.search(rf"\b{resource}:(\d+)", text)
    assert found, f"no {resource} in {text!r}"
    return int(found[1])


def _run_tool(name: str, *args: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(tool), *args], check=True, capture_output=True, text=True).stdout
