"""The library's Llama: the default model's bfloat16 logits beside PyTorch's, and the same bits in any company."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pageloom.config import WorkerConfig
from pageloom.model_files import locate_model
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import load_tokenizer
from pageloom_kernels import AttentionBatch
from pageloom_kernels.cpu.thread_pool import ThreadPool
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.support.plan_driver import PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.kv_cache import allocate_kv_cache
from worker_svc.loader import load_model, open_checkpoint
from worker_svc.models.cpu_llama import CpuLlama
from worker_svc.models.llama import Llama
from worker_svc.models.model import Model
from worker_svc.runner import ModelRunner, load_runner
from worker_svc.sampler import NOT_FINITE

CPU = torch.device("cpu")
NUM_POSITIONS = 256
TEXTS = [
    "The water cycle describes how water moves above, on and below the surface of the Earth. The sun heats the sea, "
    "water evaporates, and the vapour rises until it is cold enough to condense into clouds. Wind carries them over "
    "the land, where the water falls as rain or snow. Some of it flows back in rivers, and some seeps into the ground "
    "and stays there for thousands of years before it reaches the sea again. Without it, no life on land.",
    "def quicksort(items):\n    if len(items) <= 1:\n        return items\n    pivot = items[len(items) // 2]\n"
    "    left = [x for x in items if x < pivot]\n    middle = [x for x in items if x == pivot]\n"
    "    right = [x for x in items if x > pivot]\n    return quicksort(left) + middle + quicksort(right)\n\n"
    "print(quicksort([3, 6, 8, 10, 1, 2, 1]))\n",
    "Once upon a time there was a miller who had three sons. When he died, the eldest got the mill, the second got the "
    "donkey, and the youngest got nothing but the cat. The poor young man sat down and wondered how he should live. "
    "Do not be sad, said the cat. Give me a bag and a pair of boots, and you shall see that your share is not as bad "
    "as you believe. So he did as he was told.",
]
# Of the fp32 logits: below it the rounding of bfloat16 decides, and two right implementations may differ.
TIE = 0.15


@functools.cache
def exact_model() -> Llama:
    """The default model in float32, dequantized."""
    checkpoint = open_checkpoint(locate_model(""))
    model = Llama(checkpoint.config, num_positions=NUM_POSITIONS, dtype=torch.float32, device=CPU)
    for name, tensor in model.destinations().items():
        checkpoint.weights.read(name, tensor)
    return model


def rounded(model: Model) -> Model:
    """The same model in bfloat16."""
    weights = exact_model().destinations()
    for name, tensor in model.destinations().items():
        assert isinstance(tensor, Tensor)
        tensor.copy_(weights[name])
    model.finish_loading()
    return model


def library_model(instruction_set: str) -> Model:
    pool = ThreadPool(load(instruction_set), 2)
    config = exact_model().config
    return rounded(CpuLlama(config, num_positions=NUM_POSITIONS, pool=pool, ggml_types={}))


@torch.inference_mode()
def logits(model: Model, dtype: torch.dtype) -> Tensor:
    """Of every position of TEXTS: two whole prompts, then a chunk and single tokens that continue them."""
    tokenizer = load_tokenizer(locate_model(""))
    texts = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)[:90]) for text in TEXTS]
    caches = allocate_kv_cache(model.config, num_blocks=9, block_size=32, dtype=dtype, device=CPU).layers
    results = torch.full((3, 90, model.config.vocab_size), torch.nan)
    for runs in (((0, 0, 40), (1, 0, 70)), ((0, 40, 89), (1, 70, 71)), ((2, 0, 88),), ((0, 89, 90), (2, 88, 89))):
        token_ids = torch.cat([texts[text][start:end] for text, start, end in runs])
        outputs = model.logits(model.forward(token_ids, make_batch(runs), caches, torch.arange(len(token_ids))))
        for (text, start, end), part in zip(runs, outputs.split([e - s for _, s, e in runs]), strict=True):
            results[text, start:end] = part
    return results[~results[..., 0].isnan()]


def make_batch(runs) -> AttentionBatch:
    """Text i has the blocks i, i + 3 and i + 6; decodes must come first for PyTorch's kernels."""
    runs = list(runs)
    positions = torch.cat([torch.arange(start, end) for _, start, end in runs])
    tables = torch.tensor([[text, text + 3, text + 6] for text, _, _ in runs], dtype=torch.int32)
    lens = torch.tensor([end - start for _, start, end in runs])
    blocks = tables.repeat_interleave(lens, 0).gather(1, positions[:, None] // 32)[:, 0]
    return AttentionBatch(
        block_tables=tables,
        seq_lens=torch.tensor([end for _, _, end in runs], dtype=torch.int32),
        query_start=torch.cat((torch.zeros(1), lens.cumsum(0))).int(),
        num_decodes=0,
        max_query_len=int(lens.max()),
        max_seq_len=int(max(end for _, _, end in runs)),
        positions=positions,
        slot_mapping=blocks * 32 + positions % 32,
    )


@functools.cache
def references() -> tuple[Tensor, Tensor]:
    config = exact_model().config
    theirs = rounded(Llama(config, num_positions=NUM_POSITIONS, dtype=torch.bfloat16, device=CPU))
    return logits(exact_model(), torch.float32), logits(theirs, torch.bfloat16)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_default_model_equals_pytorch_unless_the_choice_is_a_tie(instruction_set):
    exact, theirs = references()
    ours = logits(library_model(instruction_set), torch.bfloat16)
    choices, their_choices = ours.argmax(-1), theirs.argmax(-1)
    gaps = exact.gather(1, their_choices[:, None])[:, 0] - exact.gather(1, choices[:, None])[:, 0]
    assert gaps.abs().max() < TIE
    assert (choices != their_choices).double().mean() < 0.1
    # No further from float32 than PyTorch in bfloat16.
    assert (ours - exact).abs().max() < 1.3 * (theirs - exact).abs().max()
    assert (ours - exact).abs().mean() < 1.1 * (theirs - exact).abs().mean()


@torch.inference_mode()
def tiny_logprobs(folder: Path, dtype: torch.dtype, pool: ThreadPool | None) -> Tensor:
    """Of every position of a prompt of random tokens."""
    model, _ = load_model(
        open_checkpoint(locate_model(str(folder))),
        num_positions=128,
        dtype=dtype,
        device=CPU,
        cpu_pool=pool,
        ggml_types={},
        progress=lambda _done, _total: None,
    )
    caches = allocate_kv_cache(model.config, num_blocks=9, block_size=32, dtype=dtype, device=CPU).layers
    token_ids = torch.randint(211, (90,), generator=torch.Generator().manual_seed(0))
    hidden = model.forward(token_ids, make_batch([(0, 0, 90)]), caches, torch.arange(90))
    return model.logits(hidden).float().log_softmax(-1)


@pytest.mark.parametrize("family", ["qwen3", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_families_equal_pytorch_up_to_rounding(tmp_path, family):
    pool = ThreadPool(load(INSTRUCTION_SETS[0]), 2)
    make_checkpoint(tmp_path, family=family)
    exact = tiny_logprobs(tmp_path, torch.float32, None)
    theirs = tiny_logprobs(tmp_path, torch.bfloat16, None)
    ours = tiny_logprobs(tmp_path, torch.bfloat16, pool)
    # Now and then rounding gives a token another expert, so that its error is no measure: half of the rows are better.
    assert (ours - theirs).abs().mean(-1).median() < 0.05
    assert (ours - exact).abs().mean(-1).median() < 1.3 * (theirs - exact).abs().mean(-1).median()


def test_the_most_likely_token_is_that_of_the_logits():
    model = library_model(INSTRUCTION_SETS[0])
    hidden = torch.randn(40, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(model.most_likely(hidden), model.logits(hidden).argmax(-1))


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "one key-value head": {"num_key_value_heads": 1},
    "multi-head attention, wide heads": {"num_key_value_heads": 4, "head_dim": 48},
    "attention and MLP biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"family": "qwen2"},
    "qwen2_moe": {"family": "qwen2_moe"},
    "qwen3_moe": {"family": "qwen3_moe", "mlp_only_layers": [1]},
}


def load_tiny(path, **settings) -> ModelRunner:
    limits = {"num_blocks": 40, "block_size": 32, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    values = {"model": str(path), "device": "cpu", "dtype": "bfloat16", "num_threads": 2, **limits, **settings}
    return load_runner(WorkerConfig(**{"cpu_kernels": "auto", **values}), lambda _done, _total: None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_probabilities_have_the_same_bits_in_any_batch(tmp_path, variant):
    """Prompts in chunks of random lengths beside others, against each alone with another number of threads."""
    load(INSTRUCTION_SETS[0])
    make_checkpoint(tmp_path, **VARIANTS[variant])
    rng = random.Random(1)
    prompts = [[rng.randrange(211) for _ in range(length)] for length in (1, 16, 33, 180, 70, 31, 100, 64, 12, 5)]
    sampling = [SamplingParams(temperature=0.0, seed=0, max_tokens=12, logprobs=20)] * len(prompts)
    alone = PlanDriver(load_tiny(tmp_path, num_threads=1, block_size=128), max_chunk=256)
    outputs = [alone.generate([prompt], 12, sampling[:1]) for prompt in prompts]
    # Each call numbers its prompts from 0, so that all are in one list.
    expected = alone.logprobs[0]
    for seed, block_size in ((1, 32), (2, 64)):
        together = PlanDriver(load_tiny(tmp_path, block_size=block_size), seed=seed, max_chunk=50)
        assert together.generate(prompts, 12, sampling) == [output for [output] in outputs]
        assert [report for i in range(len(prompts)) for report in together.logprobs[i]] == expected


def test_one_poisoned_request_fails_alone(tmp_path):
    load(INSTRUCTION_SETS[0])
    make_checkpoint(tmp_path)
    weights_file = tmp_path / "model.safetensors"
    tensors = load_file(weights_file)
    tensors["model.embed_tokens.weight"][13] = float("nan")
    save_file(tensors, weights_file, metadata={"format": "pt"})
    rng = random.Random(3)
    prompts = [[rng.choice([t for t in range(211) if t != 13]) for _ in range(length)] for length in (30, 40, 35, 20)]
    sampling = [SamplingParams(temperature=0.0, seed=0, max_tokens=8, logit_bias={13: -100.0})] * 5
    alone = PlanDriver(load_tiny(tmp_path)).generate(prompts, 8, sampling[:4])
    # So few blocks that the later requests must use the poisoned ones again.
    driver = PlanDriver(load_tiny(tmp_path, num_blocks=6, max_num_seqs=3), max_chunk=16)
    outputs = driver.generate([prompts[0], [*prompts[1][:20], 13, 5], *prompts[1:]], 8, sampling)
    assert driver.failures == {1: NOT_FINITE}
    assert [outputs[i] for i in (0, 2, 3, 4)] == alone
