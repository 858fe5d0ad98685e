"""Our Llama against transformers' on small random checkpoints: logits to 1e-4 and the same greedy tokens."""

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from pageloom.config import WorkerConfig
from pageloom.sampling_params import SamplingParams
from tests.support.plan_driver import PlanDriver
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.runner import ModelRunner, load_runner

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "multi-head attention": {"num_key_value_heads": 4},
    "one key-value head": {"num_key_value_heads": 1},
    "explicit head_dim": {"head_dim": 32},
    "attention and MLP biases": {"attention_bias": True, "mlp_bias": True},
    "sharded": {"max_shard_size": "60KB"},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "yarn with its own factors": {
        "rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False}
    },
    "yarn with mscale": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "mistral": {"family": "mistral"},
    "qwen2": {"family": "qwen2"},
    "qwen3 with biases": {"family": "qwen3", "attention_bias": True, "head_dim": 32},
    "mixtral": {"family": "mixtral"},
    "mixtral, experts fused": {"family": "mixtral", "save_original_format": False},
    "qwen2_moe": {"family": "qwen2_moe"},
    "qwen3_moe": {"family": "qwen3_moe"},
    "qwen3_moe, experts fused, sharded": {
        "family": "qwen3_moe",
        "save_original_format": False,
        "max_shard_size": "60KB",
        "norm_topk_prob": False,
    },
    "every second layer with experts": {"family": "qwen3_moe", "decoder_sparse_step": 2},
    "qwen2_moe without biases, some layers without experts": {
        "family": "qwen2_moe",
        "qkv_bias": False,
        "norm_topk_prob": True,
        "mlp_only_layers": [0, 2],
    },
}


def load(path, **settings) -> ModelRunner:
    # More threads than one cost models of this size more than they save.
    limits = {"num_blocks": 128, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 512, "num_threads": 1}
    values = {"model": str(path), "scheduler_address": "", "device": "cpu", **limits, **settings}
    return load_runner(WorkerConfig(**values), lambda _done, _total: None)


def make_prompts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in (1, 16, 33, 180)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(tmp_path, variant):
    reference = make_checkpoint(tmp_path, **VARIANTS[variant])
    runner = load(tmp_path)
    prompts = make_prompts(211)
    # All log-probabilities up to the most that may be asked for, which show an error that argmax hides.
    sampling = [SamplingParams(temperature=0.0, seed=0, max_tokens=16, logprobs=20)] * len(prompts)
    driver = PlanDriver(runner, max_chunk=50)
    outputs = driver.generate(prompts, 16, sampling)
    assert outputs == reference_greedy(prompts, 16, reference)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        expected = logits.log_softmax(dim=-1)
        for i, reported in enumerate(driver.logprobs[index]):
            wanted = expected[i, list(reported.top_token_ids)]
            torch.testing.assert_close(torch.tensor(reported.top_logprobs), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("stored", "asked"), [(torch.bfloat16, "bfloat16"), (torch.float16, "bfloat16")])
def test_bfloat16_stays_close(tmp_path, stored, asked):
    """No further from float32 than transformers in bfloat16, give or take: both round, each in its order."""
    reference = make_checkpoint(tmp_path, dtype=stored)
    prompts = make_prompts(211)
    reference.bfloat16()
    rounded = last_logprobs(reference, prompts)
    reference.float()
    exact = last_logprobs(reference, prompts)
    runner = load(tmp_path, dtype=asked)
    assert runner.model_info.dtype == "bfloat16"
    driver = PlanDriver(runner)
    driver.generate(prompts, 1, [SamplingParams(temperature=0.0, seed=0, max_tokens=1, logprobs=20)] * len(prompts))
    for index in range(len(prompts)):
        reported = driver.logprobs[index][0]
        at = list(reported.top_token_ids)
        our_error = (torch.tensor(reported.top_logprobs) - exact[index, at]).abs().mean()
        their_error = (rounded[index, at] - exact[index, at]).abs().mean()
        assert our_error < 2 * their_error + 0.05


def last_logprobs(model: PreTrainedModel, prompts: list[list[int]]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]).float().log_softmax(-1)
