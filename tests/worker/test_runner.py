"""A loaded model over hand-made plans: the default model's greedy tokens, and what one request may not do to others."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.plan import Admission, BatchPlan, Failure
from pageloom.sampling_params import SamplingParams
from tests.support.plan_driver import GREEDY, PlanDriver
from tests.support.reference_model import reference_choices
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.runner import ModelRunner, load_runner
from worker_svc.sampler import NOT_FINITE
from worker_svc.slots import PlanError

POISON = 13
VOCAB_SIZE = 211


def load(model: str | Path, **settings) -> ModelRunner:
    limits = {"num_blocks": 96, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 256, "dtype": "float32"}
    values = {"model": str(model), "scheduler_address": "", "device": "cpu", **limits, **settings}
    return load_runner(WorkerConfig(**values), lambda _done, _total: None)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder, tie_word_embeddings=True)
    return folder


@pytest.fixture(scope="module")
def tiny(tiny_folder) -> ModelRunner:
    return load(tiny_folder)


epochs = itertools.count(1)


def drive(runner: ModelRunner, **settings) -> PlanDriver:
    return PlanDriver(runner, epoch=next(epochs), **settings)


def random_prompts(lengths: list[int], vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.choice([t for t in range(vocab_size) if t != POISON]) for _ in range(length)] for length in lengths]


def test_default_model_equals_transformers():
    runner = load("")
    assert runner.model_info.eos_token_ids == (2,)
    assert (runner.model_info.vocab_size, runner.model_info.architecture) == (49152, "llama")
    rng = random.Random(0)
    prompts = [[rng.randrange(49152) for _ in range(length)] for length in (1, 40, 131)]
    outputs = drive(runner, max_chunk=80).generate(prompts, 16)
    assert outputs == reference_choices(prompts, outputs)


def test_the_numbers_drawn_do_not_depend_on_the_batch(tiny):
    prompts = random_prompts([5, 40, 17, 33, 64, 2])
    sampling = [SamplingParams(seed=seed, temperature=1.2, top_p=0.9, max_tokens=30) for seed in range(len(prompts))]
    together = drive(tiny, seed=1).generate(prompts, 30, sampling)
    alone = [
        drive(tiny, seed=2).generate([prompt], 30, [one])[0] for prompt, one in zip(prompts, sampling, strict=True)
    ]
    assert together == alone
    assert len({token for output in together for token in output}) > 20


def test_a_resumed_choice_goes_on_as_if_never_stopped(tiny):
    """After preemption or loss of a worker: prompt and output so far come back as one admission."""
    (prompt,) = random_prompts([21])
    sampling = SamplingParams(
        seed=8, temperature=1.0, frequency_penalty=0.7, repetition_penalty=1.2, min_tokens=18, max_tokens=20
    )
    whole = drive(tiny).generate([prompt], 20, [sampling])[0]
    for delivered in (1, 7, 19):
        known = (*prompt, *whole[:delivered])
        resumed = Admission(
            slot=1,
            token_ids=known,
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            block_ids=(3, 1, 2),
            sampling=sampling,
        )
        epoch = next(epochs)
        first = BatchPlan(epoch=epoch, step=1, admissions=(resumed,), chunk_slots=(1,), chunk_lens=(len(known),))
        results = [tiny.step(first)]
        results += [tiny.step(BatchPlan(epoch=epoch, step=step)) for step in range(2, 21 - delivered)]
        assert [result.token_ids[0] for result in results] == whole[delivered:]


def test_one_poisoned_request_fails_alone(tmp_path):
    """A token whose embedding is not a number spoils its own sequence, and nobody who gets its blocks later."""
    make_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    # 12 blocks: the later requests must use the poisoned ones again.
    runner = load(tmp_path, num_blocks=12, max_num_seqs=3)
    prompts = random_prompts([30, 25, 40, 35, 20])
    sampling = [SamplingParams(temperature=0.0, seed=0, max_tokens=8, logit_bias={POISON: -100.0})] * len(prompts)
    alone = [drive(load(tmp_path), seed=1).generate([prompt], 8, sampling)[0] for prompt in prompts]
    prompts[1][11] = POISON
    driver = drive(runner, max_chunk=16)
    outputs = driver.generate(prompts, 8, sampling)
    assert driver.failures == {1: NOT_FINITE}
    assert outputs[1] == []
    assert [outputs[i] for i in (0, 2, 3, 4)] == [alone[i] for i in (0, 2, 3, 4)]


def test_tokens_outside_the_vocabulary_fail_alone(tiny):
    prompts = random_prompts([9, 9])
    alone = drive(tiny).generate(prompts[1:], 5)
    driver = drive(tiny)
    assert driver.generate([[1, VOCAB_SIZE, 2], prompts[1]], 5) == [[], *alone]
    assert driver.failures == {0: Failure(f"a token id is outside the model's vocabulary of {VOCAB_SIZE}")}


def test_a_grammar_that_cannot_be_used_fails_alone(tiny):
    """The tiny model has no tokenizer, so no grammar can be followed."""
    prompts = random_prompts([9, 9, 9])
    sampling = [GREEDY, replace(GREEDY, grammar="{}"), GREEDY]
    expected = drive(tiny).generate(prompts, 5)
    driver = drive(tiny)
    assert driver.generate(prompts, 5, sampling) == [expected[0], [], expected[2]]
    assert driver.failures == {1: Failure("this model's worker cannot follow a grammar; its log says why", "grammar")}


def test_allowed_tokens_in_a_batch(tiny):
    prompts = random_prompts([9, 17])
    sampling = [GREEDY, replace(GREEDY, allowed_token_ids=(5, 6, 200), bad_words=((6,), (5, 5)))]
    outputs = drive(tiny).generate(prompts, 8, sampling)
    assert outputs[0] == drive(tiny).generate(prompts[:1], 8)[0]
    assert len(outputs[1]) == 8
    assert set(outputs[1]) <= {5, 200}
    assert (5, 5) not in set(itertools.pairwise(outputs[1]))


def test_copied_blocks_hold_the_same_context(tiny):
    (prompt,) = random_prompts([32])
    whole = drive(tiny).generate([prompt], 4)[0]
    epoch = next(epochs)

    def admission(slot: int, block_ids: tuple[int, ...], computed: int) -> Admission:
        return Admission(
            slot=slot, token_ids=tuple(prompt), num_prompt_tokens=32, num_computed_tokens=computed,
            block_ids=block_ids, sampling=replace(GREEDY, max_tokens=8),
        )  # fmt: skip

    first = BatchPlan(epoch=epoch, step=1, admissions=(admission(0, (4, 5, 6), 0),), chunk_slots=(0,), chunk_lens=(32,))
    assert tiny.step(first).token_ids == (whole[0],)
    copying = BatchPlan(
        epoch=epoch, step=2, released_slots=(0,), admissions=(admission(1, (4, 9, 8), 31),),
        chunk_slots=(1,), chunk_lens=(1,), copy_source_block_ids=(5,), copy_target_block_ids=(9,),
    )  # fmt: skip
    assert tiny.step(copying).token_ids == (whole[0],)
    assert [tiny.step(BatchPlan(epoch=epoch, step=step)).token_ids[0] for step in (3, 4, 5)] == whole[1:]


def test_a_wrong_plan_ends_its_epoch_only(tiny):
    prompts = random_prompts([9])
    expected = drive(tiny).generate(prompts, 5)
    with pytest.raises(PlanError, match="slot 3 is run but not bound"):
        tiny.step(BatchPlan(epoch=next(epochs), step=1, chunk_slots=(3,), chunk_lens=(1,)))
    assert drive(tiny).generate(prompts, 5) == expected


def test_an_empty_plan_is_a_step_without_result(tiny):
    result = tiny.step(BatchPlan(epoch=next(epochs), step=1, snapshot=True))
    assert (result.slots, result.token_ids, result.failures) == ((), (), {})


def test_warming_up_leaves_the_blocks_alone(tiny_folder):
    runner = load(tiny_folder)
    before = drive(runner).generate(random_prompts([20]), 5)
    blocks = runner._kv.blocks.clone()
    runner.warm_up()
    assert torch.equal(runner._kv.blocks, blocks)
    assert drive(runner).generate(random_prompts([20]), 5) == before


def test_context_shrinks_to_the_blocks_unless_it_was_asked_for(tiny_folder):
    assert load(tiny_folder, num_blocks=7).model_info.max_model_len == 112
    assert load(tiny_folder, num_blocks=7, max_model_len=100).model_info.max_model_len == 100
    with pytest.raises(InvalidConfig, match=r"--max-model-len 113 does not fit.*7 blocks of 16.*lower it to 112"):
        load(tiny_folder, num_blocks=7, max_model_len=113)
    with pytest.raises(InvalidConfig, match="--max-model-len 257 is more than the model's 256 positions"):
        load(tiny_folder, max_model_len=257)


def test_blocks_by_bytes(tiny_folder):
    # 3 layers, K and V, 2 heads of 16 dimensions, float32, 16 tokens: 12,288 bytes a block.
    runner = load(tiny_folder, num_blocks=None, kv_cache_memory_bytes=12_288 * 20 + 5)
    assert (runner.cache_info.num_blocks, runner.cache_info.kv_bytes) == (20, 12_288 * 20)
    with pytest.raises(InvalidConfig, match="less than the 12288 of one block"):
        load(tiny_folder, num_blocks=None, kv_cache_memory_bytes=12_287)


def test_equal_files_give_equal_digests(tiny_folder, tmp_path):
    make_checkpoint(tmp_path / "same", tie_word_embeddings=True)
    make_checkpoint(tmp_path / "other", tie_word_embeddings=True, rms_norm_eps=1e-5)
    digest = load(tiny_folder).model_info.digest
    assert load(tmp_path / "same").model_info.digest == digest
    assert load(tmp_path / "other").model_info.digest != digest
    assert load(tiny_folder, dtype="bfloat16").model_info.digest != digest
