"""Log-probabilities of prompts beside transformers' log-softmax, in chunks and batches, on both ways to run a model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from pageloom.outputs import PromptLogprobs
from pageloom.plan import Admission, BatchPlan
from pageloom.sampling_params import SamplingParams
from tests.kernels.cpu.libraries import INSTRUCTION_SETS
from tests.kernels.cpu.libraries import load as load_library
from tests.support.plan_driver import PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_runner import POISON, VOCAB_SIZE, load, make_prompts
from worker_svc import prompt_scores
from worker_svc.sampler import NOT_FINITE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, make_checkpoint(folder)


def asking(num_top: int | None, **fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "seed": 0, "max_tokens": 4, "prompt_logprobs": num_top, **fields})


def joined(parts: list[PromptLogprobs]) -> PromptLogprobs:
    """The whole prompt's, which must come without gap or repeat."""
    for one, other in pairwise(parts):
        assert other.first_index == one.first_index + len(one.logprobs)
    return PromptLogprobs(
        first_index=parts[0].first_index,
        logprobs=sum((part.logprobs for part in parts), ()),
        ranks=sum((part.ranks for part in parts), ()),
        top_token_ids=sum((part.top_token_ids for part in parts), ()),
        top_logprobs=sum((part.top_logprobs for part in parts), ()),
    )


@torch.inference_mode()
def reference(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """Log-softmax [tokens - 1, vocab] at each token but the last."""
    logits: torch.Tensor = model(torch.tensor([prompt])).logits[0, :-1]
    return logits.float().log_softmax(dim=-1)


def check(scores: PromptLogprobs, prompt: list[int], num_top: int, expected: torch.Tensor, tolerance: float) -> None:
    assert scores.first_index == 1
    chosen = expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scores.logprobs), chosen, atol=tolerance, rtol=0)
    assert len(scores.top_token_ids) == num_top * (len(prompt) - 1)
    if num_top == 0:
        return
    top_ids = torch.tensor(scores.top_token_ids).view(-1, num_top)
    top = torch.tensor(scores.top_logprobs).view(-1, num_top)
    torch.testing.assert_close(top, expected.topk(num_top).values, atol=tolerance, rtol=0)
    torch.testing.assert_close(top, expected.gather(1, top_ids), atol=tolerance, rtol=0)
    for row, (token_id, rank) in enumerate(zip(prompt[1:], scores.ranks, strict=True)):
        if rank <= num_top:
            at = row * num_top + rank - 1
            assert (scores.top_token_ids[at], scores.top_logprobs[at]) == (token_id, scores.logprobs[row])


@pytest.mark.parametrize("max_chunk", [7, 256])
def test_equal_to_transformers(tiny, max_chunk, monkeypatch):
    """With so few logits at one time that one chunk's rows take several rounds."""
    folder, model = tiny
    monkeypatch.setattr(prompt_scores, "_MAX_LOGITS", 20 * VOCAB_SIZE)
    prompts = make_prompts([1, 2, 40, 131, 64, 90])
    nums_top = [1, 20, 5, 0, 1, 3]
    driver = PlanDriver(load(folder, dtype="float32", cpu_kernels="torch"), max_chunk=max_chunk)
    driver.generate(prompts, 4, [asking(num_top) for num_top in nums_top])
    assert driver.prompt_logprobs.keys() == {1, 2, 3, 4, 5}
    for index, scores in driver.prompt_logprobs.items():
        expected = reference(model, prompts[index])
        check(joined(scores), prompts[index], nums_top[index], expected, 2e-4)


def test_ranks(tiny):
    folder, model = tiny
    (prompt,) = make_prompts([60])
    driver = PlanDriver(load(folder, dtype="float32", cpu_kernels="torch"))
    driver.generate([prompt], 4, [asking(0)])
    expected = reference(model, prompt)
    chosen = expected.gather(1, torch.tensor(prompt[1:])[:, None])
    assert list(joined(driver.prompt_logprobs[0]).ranks) == ((expected > chosen).sum(1) + 1).tolist()


def test_the_library_gives_the_same_bits_in_any_batch_and_stays_near_transformers(tmp_path):
    load_library(INSTRUCTION_SETS[0])
    model = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    prompts = make_prompts([33, 180, 70, 12])
    sampling = [asking(20)] * len(prompts)
    settings = {"dtype": "bfloat16", "cpu_kernels": "auto"}
    alone = PlanDriver(load(tmp_path, **settings), max_chunk=256)
    together = PlanDriver(load(tmp_path, **settings | {"num_threads": 2}), seed=3, max_chunk=50)
    together.generate(prompts, 4, sampling)
    for index, prompt in enumerate(prompts):
        alone.prompt_logprobs.clear()
        alone.generate([prompt], 4, sampling[:1])
        scores = joined(alone.prompt_logprobs[0])
        assert joined(together.prompt_logprobs[index]) == scores
        expected = reference(model.float(), prompt)
        chosen = expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        # In bfloat16 a logit of 10 is off by up to 0.03, and errors add up over layers.
        assert (torch.tensor(scores.logprobs) - chosen).abs().mean() < 0.1


def test_what_is_drawn_is_the_same_with_and_without(tiny):
    folder, _ = tiny
    prompts = make_prompts([20, 35, 50])
    runner = load(folder, dtype="float32", cpu_kernels="torch")
    for temperature in (0.0, 1.0):
        plain = PlanDriver(runner, epoch=1 + round(temperature) * 2, max_chunk=16)
        outputs = plain.generate(prompts, 4, [asking(None, temperature=temperature)] * 3)
        scored = PlanDriver(runner, epoch=2 + round(temperature) * 2, max_chunk=16)
        nums_top = (None, 2, 0)
        assert scored.generate(prompts, 4, [asking(top, temperature=temperature) for top in nums_top]) == outputs
        assert scored.prompt_logprobs.keys() == {1, 2}


def test_it_goes_on_where_it_was(tiny):
    """After a preemption: some of the prompt is in the blocks, and more of it is scored already."""
    folder, model = tiny
    (prompt,) = make_prompts([40])
    runner = load(folder, dtype="float32", cpu_kernels="torch")

    def admission(computed: int, first: int) -> Admission:
        return Admission(
            slot=1, token_ids=tuple(prompt), num_prompt_tokens=40, num_computed_tokens=computed, block_ids=(3, 5),
            sampling=asking(2), first_scored_token=first,
        )  # fmt: skip

    first = runner.step(
        BatchPlan(epoch=1, step=1, admissions=(admission(0, 1),), chunk_slots=(1,), chunk_lens=(35,))
    ).prompt_logprobs[1]
    second = BatchPlan(
        epoch=1, step=2, released_slots=(1,), admissions=(admission(32, 36),), chunk_slots=(1,), chunk_lens=(2,)
    )
    assert runner.step(second).prompt_logprobs == {}
    third = BatchPlan(epoch=1, step=3, chunk_slots=(1,), chunk_lens=(6,))
    scores = joined([first, runner.step(third).prompt_logprobs[1]])
    check(scores, prompt, 2, reference(model, prompt), 2e-4)


def test_a_prompt_without_numbers_fails_alone(tmp_path):
    make_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    prompts = make_prompts([30, 25, 40])
    prompts[1][11] = POISON
    driver = PlanDriver(load(tmp_path, dtype="float32", cpu_kernels="torch"), max_chunk=16)
    outputs = driver.generate(prompts, 4, [asking(1)] * 3)
    assert driver.failures == {1: NOT_FINITE}
    assert outputs[1] == []
    assert [len(joined(driver.prompt_logprobs[index]).logprobs) for index in (0, 2)] == [29, 39]
