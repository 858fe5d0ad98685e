"""A runner of a tiny checkpoint on the CPU, and prompts for it."""

import random
from pathlib import Path

from pageloom.config import WorkerConfig
from worker_svc.runner import ModelRunner, load_runner

# A token that no prompt has.
POISON = 13
VOCAB_SIZE = 211


def load(folder: Path, **settings) -> ModelRunner:
    limits = {"num_blocks": 40, "block_size": 32, "max_num_seqs": 8, "max_num_batched_tokens": 256, "num_threads": 1}
    return load_runner(
        WorkerConfig(**{"model": str(folder), "device": "cpu", **limits, **settings}), lambda _done, _total: None
    )


def make_prompts(lengths: list[int], seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.choice([t for t in range(VOCAB_SIZE) if t != POISON]) for _ in range(length)] for length in lengths]
