"""Runs the tests of `interpreted/` with Triton's interpreter, which can only be chosen before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).with_name("interpreted")


def test_kernels_equal_their_twins_under_the_interpreter():
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        cwd=FOLDER.parents[2],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
