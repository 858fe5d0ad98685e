"""Random histories against the paper model: each output equals its solo run, whatever happens around it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scheduler.core.histories import run_history
from tests.scheduler.core.soak import CHUNK, run_chunk

ROOT = Path(__file__).parents[3]
# Twenty take a second of a core. `make soak` runs 100,000, of other seeds.
NUM_HISTORIES = 2500


def test_random_histories():
    chunks = [range(first, first + CHUNK) for first in range(0, NUM_HISTORIES, CHUNK)]
    done: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool() as pool:
        for outcome in pool.imap_unordered(run_chunk, chunks):
            assert not outcome.failure, outcome.failure
            done += outcome.counts
    assert done["histories"] == NUM_HISTORIES
    assert done["preemptions"] > 0
    assert done["lost workers"] > 0


def digest(num_histories: int) -> str:
    """Of all calls of some histories, and of what the core answered."""
    return hashlib.sha256(b"".join(b"".join(run_history(seed).recorded) for seed in range(num_histories))).hexdigest()


# Under these two, the names of the workers hash in opposite orders: one order is another than that of this process.
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_another_process_decides_the_same(hash_seed: str):
    """Nothing depends on the order of a set of strings, which differs from process to process."""
    code = "from tests.scheduler.core.test_random_histories import digest; print(digest(60))"
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    assert other.stdout.strip() == digest(60)
