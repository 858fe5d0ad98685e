"""Random histories against the paper model: each output equals its solo run, whatever happens around it."""

from __future__ import annotations

import pytest

from tests.scheduler.core.histories import run_history

NUM_HISTORIES = 5000
NUM_SHARDS = 10


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_histories(shard: int):
    for seed in range(shard, NUM_HISTORIES, NUM_SHARDS):
        run_history(seed)
