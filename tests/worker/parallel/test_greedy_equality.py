"""Models split over ranks draw what they draw in one piece: transformers' greedy tokens in float32, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pageloom.sampling_params import SamplingParams
from tests.support.plan_driver import PlanDriver
from tests.support.rank_group import Job, Outcome, run_jobs
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_eagle3 import make_eagle3
from tests.support.tiny_runner import load, make_prompts
from tests.support.watched_drafter import Watched

PROMPTS = make_prompts([1, 5, 33, 70])
NUM_TOKENS = 16
# With one key-value head both ranks have it; a bias that follows a sum may be added once only; three layers are odd.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "biased": {"family": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mixtral": {"save_original_format": False},
    "qwen2_moe": {"decoder_sparse_step": 2},
}
SPLITS = {"tensor": {"tensor_parallel_size": 2}, "pipeline": {"pipeline_parallel_size": 2}}
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 3, "max_tokens": 1, "prompt_logprobs": 2},
    {"temperature": 0.8, "seed": 4, "max_tokens": 1, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return Path(tmp_path_factory.mktemp("parallel"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[list[int]]]:
    tokens = {}
    for name, settings in MODELS.items():
        model = make_checkpoint(folder / name, **{"family": name, **settings})
        tokens[name] = reference_greedy(PROMPTS, NUM_TOKENS, model)
    return tokens


@pytest.fixture(scope="module")
def found(folder: Path, expected: dict[str, list[list[int]]]) -> dict[tuple[str, str], Outcome]:
    jobs = {
        (name, split): Job(model=str(folder / name), settings=SPLITS[split], prompts=PROMPTS, max_new_tokens=NUM_TOKENS)
        for name in expected
        for split in SPLITS
    }
    for split in SPLITS:
        jobs["sampled", split] = Job(
            model=str(folder / "llama"),
            settings=SPLITS[split],
            prompts=PROMPTS[1:3],
            max_new_tokens=NUM_TOKENS,
            sampling=SAMPLING,
        )
        jobs["draft model", split] = Job(
            model=str(folder / "llama"),
            # It guesses what the model draws.
            settings={**SPLITS[split], "speculative_model": str(folder / "llama"), "num_speculative_tokens": 3},
            prompts=PROMPTS,
            max_new_tokens=NUM_TOKENS,
            num_drafts=3,
        )
    # Without an embedding of its own it takes the model's, of which each rank has a part.
    make_eagle3(folder / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    jobs["eagle3", "tensor"] = Job(
        model=str(folder / "llama"),
        settings={**SPLITS["tensor"], "speculative_model": str(folder / "head"), "num_speculative_tokens": 3},
        prompts=PROMPTS,
        max_new_tokens=NUM_TOKENS,
        num_drafts=3,
    )
    jobs["overlapping", "pipeline"] = Job(
        model=str(folder / "llama"),
        settings=SPLITS["pipeline"],
        prompts=PROMPTS[1:3],
        max_new_tokens=NUM_TOKENS,
        overlaps=True,
    )
    return dict(zip(jobs, run_jobs(folder, list(jobs.values())), strict=True))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens(expected, found, name: str, split: str):
    assert found[name, split].outputs == expected[name]


@pytest.mark.parametrize("split", SPLITS)
def test_sampled_tokens_and_log_probabilities(folder: Path, found, split: str):
    alone = PlanDriver(load(folder / "llama"))
    outputs = alone.generate(PROMPTS[1:3], NUM_TOKENS, [SamplingParams(**values) for values in SAMPLING])
    assert found["sampled", split].outputs == outputs
    scores = [logprob for part in alone.prompt_logprobs[0] for logprob in part.logprobs]
    assert found["sampled", split].prompt_logprobs[0] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("split", SPLITS)
def test_a_draft_model_guesses_for_all_ranks(expected, found, split: str):
    assert found["draft model", split].outputs == expected["llama"]
    # Without the first token of each, which the prompts draw, half of them came as guesses at least.
    assert found["draft model", split].num_accepted >= len(PROMPTS) * (NUM_TOKENS - 1) // 2


def test_a_head_guesses_the_same_for_ranks_as_for_one(folder: Path, expected, found, free_drafts):
    runner = load(folder / "llama", speculative_model=str(folder / "head"), num_speculative_tokens=3)
    assert runner._drafter is not None
    runner._drafter = watched = Watched(runner._drafter)
    runner.warm_up()
    outputs = PlanDriver(runner, num_drafts=3).generate(PROMPTS, NUM_TOKENS)
    assert found["eagle3", "tensor"].outputs == outputs == expected["llama"]
    assert found["eagle3", "tensor"].guesses == [list(guess) for guess in watched.guesses] != []


def test_a_stage_runs_a_step_while_the_next_one_runs_that_before_it(expected, found):
    assert found["overlapping", "pipeline"].outputs == expected["llama"][1:3]
