"""Embeddings beside transformers' hidden states, pooled the same way, in chunks and batches, on both CPU paths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.plan import Admission, BatchPlan
from pageloom.policies import Pooling
from tests.kernels.cpu.libraries import INSTRUCTION_SETS
from tests.kernels.cpu.libraries import load as load_library
from tests.support.plan_driver import GREEDY, PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_runner import POISON, load, make_prompts
from worker_svc.slots import PlanError

LENGTHS = [1, 40, 131, 64, 7, 90, 2, 55]
POOLINGS = [Pooling.last, Pooling.mean] * 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, make_checkpoint(folder)


@torch.inference_mode()
def reference(model: PreTrainedModel, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    states: torch.Tensor = model.base_model(torch.tensor([prompt])).last_hidden_state[0].float()  # [tokens, hidden]
    return states[-1] if pooling is Pooling.last else states.mean(dim=0)


def vector(embedding: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(embedding, "<f4").copy())


@pytest.mark.parametrize("max_chunk", [7, 256])
def test_equal_to_transformers(tiny, max_chunk):
    folder, model = tiny
    prompts = make_prompts(LENGTHS)
    driver = PlanDriver(load(folder, dtype="float32", cpu_kernels="torch"), max_chunk=max_chunk)
    assert driver.generate(prompts, 4, pooling=POOLINGS) == [[]] * len(prompts)
    for index, (prompt, pooling) in enumerate(zip(prompts, POOLINGS, strict=True)):
        torch.testing.assert_close(
            vector(driver.embeddings[index]), reference(model, prompt, pooling), atol=2e-5, rtol=1e-4
        )


def test_the_library_gives_the_same_bits_in_any_batch_and_stays_near_transformers(tmp_path):
    load_library(INSTRUCTION_SETS[0])
    model = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    prompts = make_prompts(LENGTHS)
    settings = {"dtype": "bfloat16", "cpu_kernels": "auto"}
    alone = PlanDriver(load(tmp_path, **settings), max_chunk=256)
    together = PlanDriver(load(tmp_path, **settings | {"num_threads": 2}), seed=3, max_chunk=20)
    together.generate(prompts, 4, pooling=POOLINGS)
    for index, (prompt, pooling) in enumerate(zip(prompts, POOLINGS, strict=True)):
        alone.generate([prompt], 4, pooling=[pooling])
        assert together.embeddings[index] == alone.embeddings[0]
        expected = reference(model.float(), prompt, pooling)
        assert torch.cosine_similarity(vector(alone.embeddings[0]), expected, dim=0) > 0.99


def test_what_others_generate_is_the_same(tiny):
    folder, _ = tiny
    prompts = make_prompts([20, 35, 50, 44])
    runner = load(folder, dtype="float32", cpu_kernels="torch")
    outputs = PlanDriver(runner, max_chunk=16).generate(prompts, 6)
    mixed = PlanDriver(runner, epoch=2, max_chunk=16)
    among = mixed.generate(prompts, 6, pooling=[None, Pooling.mean, None, Pooling.last])
    assert among == [outputs[0], [], outputs[2], []]
    assert mixed.embeddings.keys() == {1, 3}


def admission(prompt: list[int], pooling: Pooling | None, computed: int = 0) -> Admission:
    return Admission(
        slot=1, token_ids=tuple(prompt), num_prompt_tokens=len(prompt), num_computed_tokens=computed, block_ids=(3, 5),
        sampling=GREEDY, pooling=pooling,
    )  # fmt: skip


@pytest.mark.parametrize("pooling", list(Pooling))
def test_after_a_preemption(tiny, pooling):
    """The mean is taken anew, of all tokens; the last token's state needs only what is in the blocks."""
    folder, model = tiny
    (prompt,) = make_prompts([40])
    runner = load(folder, dtype="float32", cpu_kernels="torch")
    start = 0 if pooling is Pooling.mean else 32
    first = BatchPlan(epoch=1, step=1, admissions=(admission(prompt, pooling),), chunk_slots=(1,), chunk_lens=(35,))
    again = admission(prompt, pooling, start)
    second = BatchPlan(
        epoch=1, step=2, released_slots=(1,), admissions=(again,), chunk_slots=(1,), chunk_lens=(40 - start,)
    )
    assert runner.step(first).embeddings == {}
    result = runner.step(second)
    torch.testing.assert_close(vector(result.embeddings[1]), reference(model, prompt, pooling), atol=2e-5, rtol=1e-4)
    assert (result.slots, result.token_ids) == ((), ())
    third = BatchPlan(
        epoch=1, step=3, released_slots=(1,), admissions=(admission(prompt, None),), chunk_slots=(1,), chunk_lens=(40,)
    )
    assert runner.step(third).slots == (1,), "a slot that pooled draws for the next"


def test_a_mean_without_its_start_is_no_plan(tiny):
    folder, _ = tiny
    runner = load(folder, dtype="float32", cpu_kernels="torch")
    plan = BatchPlan(
        epoch=1, step=1, admissions=(admission([5] * 40, Pooling.mean, 32),), chunk_slots=(1,), chunk_lens=(8,)
    )
    with pytest.raises(PlanError, match="mean of its prompt, of which 32"):
        runner.step(plan)


def test_a_whole_context_can_be_pooled(tiny):
    folder, model = tiny
    (prompt,) = make_prompts([256])
    driver = PlanDriver(load(folder, dtype="float32", cpu_kernels="torch"))
    driver.generate([prompt], 1, pooling=[Pooling.last])
    expected = reference(model, prompt, Pooling.last)
    torch.testing.assert_close(vector(driver.embeddings[0]), expected, atol=2e-5, rtol=1e-4)


def test_what_is_no_number_fails_alone(tmp_path):
    make_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    prompts = make_prompts([20, 30])
    prompts.insert(1, [5, POISON, 7])
    driver = PlanDriver(load(tmp_path, dtype="float32", cpu_kernels="torch"))
    driver.generate(prompts, 4, pooling=[Pooling.mean] * 3)
    assert driver.failures.keys() == {1}
    assert driver.embeddings.keys() == {0, 2}


class TestHowItIsChosen:
    def pooling(self, folder: Path, **settings) -> Pooling:
        return load(folder, dtype="float32", cpu_kernels="torch", **settings).model_info.pooling

    def write(self, folder: Path, **values: object) -> None:
        make_checkpoint(folder)
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))

    def test_last_unless_told_otherwise(self, tiny):
        folder, _ = tiny
        assert self.pooling(folder) is Pooling.last
        assert self.pooling(folder, pooling="mean") is Pooling.mean

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "include_prompt": True}, Pooling.mean),
            ({"pooling_mode_lasttoken": True, "word_embedding_dimension": 64}, Pooling.last),
            ({"pooling_mode": "mean"}, Pooling.mean),
        ],
    )
    def test_the_folder_says(self, tmp_path, values, expected):
        self.write(tmp_path, **values)
        assert self.pooling(tmp_path) is expected
        assert self.pooling(tmp_path, pooling="last") is Pooling.last

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"pooling_mode_cls_token": True}, "asks for pooling_mode_cls_token"),
            ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
            ({}, "asks for no pooling"),
        ],
    )
    def test_what_is_not_supported_is_said_at_the_start(self, tmp_path, values, message):
        self.write(tmp_path, **values)
        with pytest.raises(InvalidConfig, match=rf"1_Pooling.config.json: .*{message}.*--pooling"):
            self.pooling(tmp_path)

    def test_names(self):
        with pytest.raises(InvalidConfig, match="--pooling must be one of auto, last, mean, not max"):
            WorkerConfig(model="", pooling="max")
