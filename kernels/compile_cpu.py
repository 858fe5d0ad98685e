"""Builds the CPU kernels: one shared library for each instruction set. Run it again after a change of the sources.

It needs nothing but a C++20 compiler and the standard library, because it runs where nothing else is installed yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CPU_PACKAGE = Path(__file__).parent / "pageloom_kernels" / "cpu"
SOURCES = CPU_PACKAGE / "src"
LIBRARIES = CPU_PACKAGE / "lib"

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTION_SETS = {
    "avx512_bf16": (*_AVX512, "-mavx512vnni", "-mavx512bf16"),
    "avx512": _AVX512,
    "avx2": _AVX2,
}
# Results must not depend on which multiplications and additions a compiler chooses to fuse. The two warnings are
# wrong about the intrinsics of GCC 12. What remains of the C++ library is linked in, so that a machine may have an
# older one.
_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off",
    "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-missing-field-initializers",
)  # fmt: skip
# Reading these takes longer than compiling most of the files that include them.
_PRECOMPILED = (
    "immintrin.h", "algorithm", "atomic", "bit", "cmath", "cstring", "memory", "thread", "variant", "vector",
)  # fmt: skip
_LINK_FLAGS = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")


class CannotCompile(Exception):
    """There is no library; the message says why in one line."""


def compile_cpu_libraries() -> None:
    """Leaves one up-to-date library for each instruction set in LIBRARIES, or none and raises CannotCompile."""
    try:
        _update(_find_compiler())
    except CannotCompile:
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        raise


def _find_compiler() -> str:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CannotCompile(f"they are for Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C++ compiler {compiler!r}; install g++, or name another one in CXX")
    return compiler


def _update(compiler: str) -> None:
    stamp, digest = LIBRARIES / "sources.sha256", _digest(compiler)
    if stamp.exists() and stamp.read_text() == digest and all(_library(name).exists() for name in INSTRUCTION_SETS):
        return
    with tempfile.TemporaryDirectory() as folder:
        _compile(compiler, Path(folder))
        LIBRARIES.mkdir(exist_ok=True)
        for name in INSTRUCTION_SETS:
            # Moved, not overwritten: a process that runs may have the one before mapped.
            staged = _library(name).with_suffix(".new")
            shutil.copy(Path(folder) / _library(name).name, staged)
            staged.replace(_library(name))
    stamp.write_text(digest)


def _compile(compiler: str, folder: Path) -> None:
    sources = sorted(SOURCES.glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as executor:

        def run_all(commands: list[list[str]]) -> None:
            list(executor.map(_run, commands))

        run_all([_precompile(compiler, name, folder) for name in INSTRUCTION_SETS])
        run_all([_compile_source(compiler, name, source, folder) for source in sources for name in INSTRUCTION_SETS])
        run_all([_link(compiler, name, sources, folder) for name in INSTRUCTION_SETS])


def _precompile(compiler: str, name: str, folder: Path) -> list[str]:
    header = folder / f"{name}.h"
    header.write_text("".join(f"#include <{system_header}>\n" for system_header in _PRECOMPILED))
    return [compiler, *_FLAGS, *INSTRUCTION_SETS[name], "-x", "c++-header", str(header), "-o", f"{header}.gch"]


def _compile_source(compiler: str, name: str, source: Path, folder: Path) -> list[str]:
    flags = (*_FLAGS, *INSTRUCTION_SETS[name], "-include", str(folder / f"{name}.h"))
    return [compiler, *flags, "-c", str(source), "-o", str(folder / f"{source.stem}.{name}.o")]


def _link(compiler: str, name: str, sources: list[Path], folder: Path) -> list[str]:
    objects = [str(folder / f"{source.stem}.{name}.o") for source in sources]
    return [compiler, *objects, *_LINK_FLAGS, "-o", str(folder / _library(name).name)]


def _library(name: str) -> Path:
    return LIBRARIES / f"pageloom_cpu.{name}.so"


def _digest(compiler: str) -> str:
    """Of all that decides what the libraries are."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(repr((version, _FLAGS, _LINK_FLAGS, INSTRUCTION_SETS)).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise CannotCompile(f"{command[0]} failed: {first}")


if __name__ == "__main__":
    try:
        compile_cpu_libraries()
    except CannotCompile as error:
        sys.exit(f"The CPU kernels were not built: {error}")
