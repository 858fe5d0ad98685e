"""Models split over ranks draw transformers' greedy tokens in float32, whatever is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_group import Job, Outcome, run_jobs
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_runner import make_prompts

PROMPTS = make_prompts([1, 5, 33, 70])
NUM_TOKENS = 16
# One key-value head is at both ranks; biases, of which those that follow a sum may be added once only; odd layers.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
}
SPLITS = {
    "tensor": {"tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
}


@pytest.fixture(scope="module")
def expected_and_found(tmp_path_factory) -> tuple[dict[str, list[list[int]]], dict[tuple[str, str], Outcome]]:
    folder: Path = tmp_path_factory.mktemp("parallel")
    expected = {}
    for name, settings in MODELS.items():
        family = name if name == "qwen2" else "llama"
        model = make_checkpoint(folder / name, family=family, **settings)
        expected[name] = reference_greedy(PROMPTS, NUM_TOKENS, model)
    cases = [(name, split) for name in MODELS for split in SPLITS]
    jobs = [
        Job(model=str(folder / name), settings=SPLITS[split], prompts=PROMPTS, max_new_tokens=NUM_TOKENS)
        for name, split in cases
    ]
    return expected, dict(zip(cases, run_jobs(folder, jobs), strict=True))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens(expected_and_found, name: str, split: str):
    expected, found = expected_and_found
    assert found[name, split].outputs == expected[name]
