"""Random histories against the paper model: each output equals its solo run, whatever happens around it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduler.core.histories import run_history

ROOT = Path(__file__).parents[3]
NUM_HISTORIES = 5000
NUM_SHARDS = 10


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_histories(shard: int):
    for seed in range(shard, NUM_HISTORIES, NUM_SHARDS):
        run_history(seed)


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
