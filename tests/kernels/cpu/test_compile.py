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
    """Runs a copy of the script over no sources; libraries of before lie where it puts them."""
    folder = tmp_path / "pageloom_kernels" / "cpu"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "broken.cpp").write_text("not a program;\n")
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


def test_a_compiler_that_fails(compile_with):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    *lines, last = compile_with("g++")
    assert last.startswith("The CPU kernels were not built: g++ failed: ")
    assert "broken.cpp:1:1: error" in last
    assert lines
