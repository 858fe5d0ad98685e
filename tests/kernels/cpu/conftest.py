"""The libraries under test are those of the sources as they are now."""

import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = Path(__file__).parents[3] / "kernels" / "compile_cpu.py"


@pytest.fixture(scope="session", autouse=True)
def libraries_are_up_to_date():
    """Where they cannot be compiled there are none afterwards, and the tests that need one say so."""
    done = subprocess.run([sys.executable, str(COMPILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "error:" not in done.stderr, done.stderr
