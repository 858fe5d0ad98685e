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

    kernel: object
    signature: dict[str, str]
    constants: dict[str, object]
    divisible_by_16: tuple[int, ...]  # argument indices
    options: dict[str, int]


class LaunchRecorder:
    """Stands in for a kernel; `kernel[grid](...)` records instead of launching."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.launches: list[Launch] = []

    def __getitem__(self, grid):
        assert all(size >= 1 for size in grid), f"empty grid {grid}"
        return self._record

    def _record(self, *args, **kwargs):
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        params = self.kernel.params
        values = dict(zip([param.name for param in params], args, strict=False)) | kwargs
        assert set(values) == {param.name for param in params}
        constants = {param.name: values[param.name] for param in params if param.is_constexpr}
        # Triton makes a constant of an integer 1, and remembers which integers and pointers are divisible by 16.
        constants |= {name: 1 for name, value in values.items() if type(value) is int and value == 1}
        signature = {name: "constexpr" if name in constants else _type_of(value) for name, value in values.items()}
        divisible = tuple(
            i
            for i, (name, value) in enumerate(values.items())
            if name not in constants and (isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0))
        )
        ordered = {param.name: signature[param.name] for param in params}
        self.launches.append(
            Launch(
                kernel=self.kernel,
                signature=ordered,
                constants=constants,
                divisible_by_16=divisible,
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
    source = ASTSource(
        fn=launch.kernel,
        signature=launch.signature,
        constexprs=launch.constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in launch.divisible_by_16},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
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
