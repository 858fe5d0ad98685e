"""Models that guess, against what they must guess by hand: whole runs of tiny models, whose answers stay the same."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.sampling_params import SamplingParams
from tests.support.plan_driver import PlanDriver
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_eagle3 import make_eagle3, reference_guesses
from tests.support.watched_drafter import Watched
from worker_svc.runner import ModelRunner, load_runner

NUM_LAYERS = 4
NUM_DRAFTS = 4
LENGTH = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("target")


@pytest.fixture(scope="module")
def target(folder) -> PreTrainedModel:
    return make_checkpoint(folder, num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(211) for _ in range(length)] for length in (1, 2, 33, 90, 15, 64)]


@pytest.fixture
def load(folder, target, free_drafts):
    """A runner in float32 that runs every guess."""

    def load(speculative_model: str, **settings) -> tuple[ModelRunner, Watched]:
        config = WorkerConfig(
            model=str(folder), speculative_model=speculative_model, num_speculative_tokens=NUM_DRAFTS, device="cpu",
            dtype="float32", num_threads=1, num_blocks=128, block_size=16, max_num_seqs=4, max_num_batched_tokens=128,
        )  # fmt: skip
        runner = load_runner(replace(config, **settings), lambda _done, _total: None)
        assert runner._drafter is not None
        runner._drafter = watched = Watched(runner._drafter)
        runner.warm_up()
        return runner, watched

    return load


def generate(runner: ModelRunner, prompts: Sequence[Sequence[int]], **settings) -> tuple[list[list[int]], int]:
    """Outputs, and how many drafts were right."""
    driver = PlanDriver(runner, epoch=next(epochs), num_drafts=NUM_DRAFTS, max_chunk=30)
    return driver.generate(prompts, LENGTH, **settings), driver.num_accepted


epochs = itertools.count(1)


def test_a_model_that_guesses_for_itself_is_always_right(load, folder, target, prompts, monkeypatch):
    """Its keys and values must be those of the known tokens at every guess, and it computes no token twice."""
    runner, watched = load(str(folder))
    forward, num_computed = watched._model.forward, []

    def counting(token_ids, *args):
        num_computed.append(len(token_ids))
        return forward(token_ids, *args)

    monkeypatch.setattr(watched._model, "forward", counting)
    outputs, num_accepted = generate(runner, prompts)
    assert sum(num_computed) <= sum(len(prompt) + LENGTH for prompt in prompts)
    assert outputs == reference_greedy(prompts, LENGTH, target)
    expected = {tuple(prompt): output for prompt, output in zip(prompts, outputs, strict=True)}
    for known, guess in watched.guesses:
        prompt = next(prompt for prompt in prompts if known[: len(prompt)] == prompt)
        assert guess == expected[tuple(prompt)][len(known) - len(prompt) :][: len(guess)]
    # After the first token, five steps of five tokens and one of four; or a step in which a long prompt is computed,
    # five, and one of three.
    assert num_accepted == sum(5 * 4 + (3 if len(prompt) < 16 else 2) for prompt in prompts)


def first_layers(target: PreTrainedModel, num_layers: int, token_ids: list[int], count: int) -> list[int]:
    """What the norm and the head find likeliest in what goes into the layer after these, one token after the other."""
    tokens = list(token_ids)
    for _ in range(count):
        with torch.inference_mode():
            states = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states[num_layers]
            tokens.append(int(target.lm_head(target.model.norm(states[0, -1])).argmax()))
    return tokens[len(token_ids) :]


def accepted(guess: list[int], truth: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(guess, truth, strict=False)))


def test_the_first_layers_guess_and_are_accepted_as_by_hand(load, target, prompts):
    runner, watched = load("layers:3")
    outputs, num_accepted = generate(runner, prompts)
    assert outputs == reference_greedy(prompts, LENGTH, target)
    for known, guess in watched.guesses:
        assert guess == first_layers(target, 3, known, len(guess))
    by_hand = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        at = 1
        while at < LENGTH:
            # The last token of an output needs no draft after it.
            num_drafts = min(NUM_DRAFTS, LENGTH - at - 1)
            right = accepted(first_layers(target, 3, prompt + output[:at], num_drafts), output[at:])
            by_hand += right
            at += right + 1
    assert num_accepted == by_hand > 0


@pytest.mark.parametrize("with_embedding", [False, True])
def test_an_eagle3_head_guesses_as_by_hand(load, target, prompts, tmp_path, with_embedding):
    head = make_eagle3(tmp_path, with_embedding=with_embedding, eagle_aux_hidden_state_layer_ids=[3, 0, 2])
    runner, watched = load(str(tmp_path))
    outputs, _ = generate(runner, prompts)
    assert outputs == reference_greedy(prompts, LENGTH, target)
    assert len(watched.guesses) > 100
    # The reference needs a token before the last known one.
    for known, guess in watched.guesses[::5]:
        assert len(guess) > 0
        assert guess == reference_guesses(head, target, (3, 0, 2), known, len(guess))


@pytest.mark.parametrize("draft", ["layers:2", "other"])
def test_sampled_answers_stay_the_same(load, prompts, draft, tmp_path):
    if draft == "other":
        make_checkpoint(tmp_path, num_hidden_layers=1, num_key_value_heads=1)
        draft = str(tmp_path)
    sampling = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=seed, max_tokens=LENGTH) for seed in range(len(prompts))
    ]
    runner, watched = load(draft)
    outputs, _ = generate(runner, prompts, sampling=sampling)
    assert watched.guesses
    assert outputs == PlanDriver(runner, epoch=next(epochs)).generate(prompts, LENGTH, sampling)


@pytest.mark.parametrize("draft", ["layers:2", "other", "eagle3"])
def test_in_the_library_of_cpu_kernels(load, prompts, draft, tmp_path):
    """It is batch-invariant, so that answers in bfloat16 are the same to the last token too."""
    if draft == "other":
        make_checkpoint(tmp_path, num_hidden_layers=1)
    elif draft == "eagle3":
        make_eagle3(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 3])
    name = draft if draft.startswith("layers") else str(tmp_path)
    runner, watched = load(name, dtype="bfloat16", block_size=32)
    assert "C++" in runner.kernels
    outputs, _ = generate(runner, prompts)
    assert len(watched.guesses) > 100
    assert outputs == PlanDriver(runner, epoch=next(epochs)).generate(prompts, LENGTH)


def test_what_cannot_guess_for_several_ranks_is_refused(load, tmp_path):
    with pytest.raises(InvalidConfig, match="layers:N needs a model that one rank holds"):
        WorkerConfig(model="", tensor_parallel_size=2, speculative_model="layers:1")
    with pytest.raises(InvalidConfig, match="eagle3 does not go with --pipeline-parallel-size"):
        WorkerConfig(model="", pipeline_parallel_size=2, speculative_method="eagle3", speculative_model="head")
    # What a folder holds is known once it is opened.
    make_eagle3(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 3])
    with pytest.raises(InvalidConfig, match="is an EAGLE-3 head, which does not go with --pipeline-parallel-size"):
        load(str(tmp_path), pipeline_parallel_size=2)
