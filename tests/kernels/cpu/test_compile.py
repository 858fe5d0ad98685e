"""An installation without a working compiler has no libraries, and says why in one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"


@pytest.fixture
def compile_with(tmp_path):
    """Runs a copy of the script over one source; libraries of before lie where it puts them."""
    folder = tmp_path / "pageloom_kernels" / "cpu"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "broken.cpp").touch()
    (folder / "lib").mkdir()
    (folder / "lib" / "pageloom_cpu.avx2.so").write_bytes(b"")
    shutil.copy(KERNELS / "compile_cpu.py", tmp_path)

    def run(compiler):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "compile_cpu.py")],
            env={**os.environ, "CXX": compiler}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert not (folder / "lib").exists()
        return done.stderr.splitlines()

    return run


def test_no_compiler(compile_with):
    why = "there is no C++ compiler '/nowhere/c++'; install g++, or name another one in CXX"
    assert compile_with("/nowhere/c++") == [f"The CPU kernels were not built: {why}"]


def test_a_compiler_that_fails(compile_with, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'broken.cpp:1:1: error: not a program' >&2\nexit 1\n")
    compiler.chmod(0o755)
    *lines, last = compile_with(str(compiler))
    assert last == f"The CPU kernels were not built: {compiler} failed: broken.cpp:1:1: error: not a program"
    assert "broken.cpp:1:1: error: not a program" in lines
