"""Guessed tokens change how fast an answer comes and nothing else: any guesses, with all that a request may ask for."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pageloom.model_files import locate_model
from pageloom.plan import Admission
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import load_tokenizer
from tests.support.plan_driver import GREEDY, PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_runner import VOCAB_SIZE, load, make_prompts
from worker_svc.drafting.drafter import Drafter, DraftRequests, Drafts, TargetStep
from worker_svc.drafting.ngram import NgramDrafter, continuation
from worker_svc.drafting.step_costs import StepCosts
from worker_svc.runner import ModelRunner
from worker_svc.slots import SlotTable

NUM_DRAFTS = 5
NUM_TOKENS = 40
epochs = itertools.count(1)


class Oracle:
    """Guesses from what each prompt has come to before, and now and then wrongly, so that runs of every length are
    right. What it is told of the model's steps has to fit the tokens."""

    tap_layers = ()

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.num_guessed = 0
        self._rng = random.Random(1)
        self._bound: dict[int, tuple[int, ...]] = {}
        self._num_seen: dict[int, int] = {}

    def warm_up(self, num_tokens: int) -> None:
        assert num_tokens > 1

    def bind(self, admission: Admission) -> None:
        assert admission.slot not in self._bound, "bound twice"
        self._bound[admission.slot] = admission.token_ids[: admission.num_prompt_tokens]
        self._num_seen[admission.slot] = 0

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            del self._bound[slot]

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        drafts = [
            self._guess(slot, limit, table)
            for slot, limit in zip(requests.slots.tolist(), requests.limits.tolist(), strict=True)
        ]
        token_ids = [token_id for draft in drafts for token_id in draft]
        self.num_guessed += len(token_ids)
        return Drafts(lens=np.array([len(draft) for draft in drafts]), token_ids=np.array(token_ids, np.int64))

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        runs = step.runs
        assert runs.lens.sum() == len(step.inputs.token_ids)
        for slot, start, num_drafts in zip(
            runs.slots.tolist(), runs.starts.tolist(), runs.num_drafts.tolist(), strict=True
        ):
            assert start == self._num_seen[slot], "a step was not told, or told twice"
            self._num_seen[slot] = int(table.num_computed_tokens[slot])
            assert num_drafts <= NUM_DRAFTS

    def _guess(self, slot: int, limit: int, table: SlotTable) -> list[int]:
        prompt = self._bound[slot]
        known = table.token_ids[slot, : table.num_tokens[slot]].tolist()
        assert tuple(known[: len(prompt)]) == prompt
        num_output = len(known) - len(prompt)
        draft = self.answers.get(prompt, [])[num_output : num_output + self._rng.randint(0, limit)]
        if draft and self._rng.random() < 0.6:
            at = self._rng.randrange(len(draft))
            draft = [*draft[:at], self._rng.randrange(VOCAB_SIZE), *draft[at + 1 :]]
        return draft


@pytest.fixture(autouse=True)
def _rows_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is doing."""
    monkeypatch.setattr("worker_svc.drafting.draft_lengths._STEP_WEIGHT", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    # With the C++ kernels, whose results are the same to the last bit however many rows a step has.
    make_checkpoint(path, dtype=torch.bfloat16, hidden_size=128, tie_word_embeddings=True)
    return path


def open_runner(model: Path | str, drafter: Drafter | None, monkeypatch: pytest.MonkeyPatch, **settings) -> ModelRunner:
    """One that runs all drafts that it may."""
    with monkeypatch.context() as patch:
        patch.setattr("worker_svc.runner.open_drafter", lambda *_args: drafter)
        costs = StepCosts(np.array([1]), np.array([1.0]))
        patch.setattr("worker_svc.runner.measure_step_costs", lambda *_args: costs)
        runner = load(model, num_speculative_tokens=NUM_DRAFTS, **settings)  # type: ignore[arg-type]
        runner.warm_up()
    return runner


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def plain(folder: Path) -> ModelRunner:
    return load(folder, dtype="bfloat16")


@pytest.fixture(scope="module")
def guessing(folder: Path, oracle: Oracle) -> ModelRunner:
    with pytest.MonkeyPatch.context() as patch:
        return open_runner(folder, oracle, patch, dtype="bfloat16")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.3, "min_p": 0.02, "logprobs": 3},
        {"logprobs": 2},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
        {"temperature": 1.0, "presence_penalty": 0.5, "logprobs": 0},
        {"logit_bias": {5: 3.0, 6: -50.0}, "min_tokens": 12, "stop_token_ids": (5,)},
        {"temperature": 1.0, "bad_words": ((5, 6), (7,), (8, 9, 10)), "allowed_token_ids": tuple(range(3, 30))},
    ],
    ids=lambda asked: "+".join(asked) or "greedy",
)
def test_every_token_is_the_one_drawn_without(plain: ModelRunner, guessing: ModelRunner, oracle: Oracle, asked):
    prompts = make_prompts([5, 70, 33, 12, 64, 3, 20, 47])
    fields = {"temperature": 0.0, "max_tokens": NUM_TOKENS, **asked}
    sampling = [SamplingParams(**{**fields, "seed": seed}) for seed in range(len(prompts))]
    alone = PlanDriver(plain, epoch=next(epochs))
    expected = alone.generate(prompts, NUM_TOKENS, sampling)
    oracle.answers = {tuple(prompt): answer for prompt, answer in zip(prompts, expected, strict=True)}
    oracle.num_guessed = 0
    driver = PlanDriver(guessing, epoch=next(epochs), num_drafts=NUM_DRAFTS)
    assert driver.generate(prompts, NUM_TOKENS, sampling) == expected
    assert driver.logprobs == alone.logprobs
    assert driver.failures == {}
    assert 40 < driver.num_accepted < oracle.num_guessed - 40, "the guesses were right or wrong too often"


def test_prompts_in_chunks_beside_and_more_requests_than_slots(plain, guessing, oracle):
    prompts = make_prompts([90, 4, 61, 130, 33, 9, 75, 18, 2, 52, 40, 7], seed=8)
    expected = PlanDriver(plain, epoch=next(epochs)).generate(prompts, NUM_TOKENS)
    oracle.answers = {tuple(prompt): answer for prompt, answer in zip(prompts, expected, strict=True)}
    driver = PlanDriver(guessing, epoch=next(epochs), num_drafts=NUM_DRAFTS, max_chunk=20)
    assert driver.generate(prompts, NUM_TOKENS) == expected
    assert driver.num_accepted > 100


def test_the_context_is_not_overrun(plain, guessing, oracle):
    prompts = make_prompts([200, 230])
    num_tokens = plain.model_info.max_model_len - 230
    expected = PlanDriver(plain, epoch=next(epochs)).generate(prompts, num_tokens)
    oracle.answers = {tuple(prompt): [*answer, *range(20)] for prompt, answer in zip(prompts, expected, strict=True)}
    driver = PlanDriver(guessing, epoch=next(epochs), num_drafts=NUM_DRAFTS)
    assert driver.generate(prompts, num_tokens) == expected


def test_50000_tokens_are_distributed_as_without(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """By prompt lookup, with other seeds than without, so that nothing is equal by its key. Of eight tokens something
    came up before nearly always, and is wrong mostly."""
    num_seqs, num_tokens, allowed = 500, 100, tuple(range(20, 28))
    drafters = (None, NgramDrafter(min_len=1, max_len=3))
    wide = {"max_num_seqs": 64, "num_blocks": 300, "max_num_batched_tokens": 512}
    plain, ngram = (open_runner(folder, drafter, monkeypatch, dtype="bfloat16", **wide) for drafter in drafters)
    counts = []
    for runner, num_drafts, first_seed in ((plain, 0, 0), (ngram, NUM_DRAFTS, num_seqs)):
        sampling = [
            SamplingParams(seed=first_seed + index, temperature=1.5, allowed_token_ids=allowed, max_tokens=num_tokens)
            for index in range(num_seqs)
        ]
        driver = PlanDriver(runner, epoch=next(epochs), num_drafts=num_drafts)
        outputs = np.array(driver.generate([[5, 6, 7]] * num_seqs, num_tokens, sampling)) - allowed[0]
        # By position, because the tokens of one sequence depend on each other.
        counts.append(np.stack([np.bincount(column, minlength=len(allowed)) for column in outputs.T]))
        assert num_drafts == 0 or driver.num_accepted > 1_000
    without, within = counts  # [positions, tokens]
    assert without.sum() == within.sum() == 50_000
    often = without + within > 0
    chi_squared = ((without - within)[often] ** 2 / (without + within)[often]).sum()
    num_free = (often.sum(axis=1) - 1).sum()
    assert chi_squared < num_free + 5 * np.sqrt(2 * num_free)


def test_a_draft_that_the_grammar_forbids_is_not_run(monkeypatch: pytest.MonkeyPatch):
    """With the default model's tokens: it draws what the grammar permits after each guess."""
    tokenizer = load_tokenizer(locate_model(""))
    schema = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 12, "maxItems": 12}
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    sampling = replace(GREEDY, grammar=grammar, max_tokens=60)
    prompt = tokenizer.encode("A list of colours, without spaces:", add_special_tokens=False)
    answers = []
    for drafter in (None, NgramDrafter(min_len=1, max_len=3)):
        runner = open_runner("", drafter, monkeypatch)
        driver = PlanDriver(runner, epoch=next(epochs), num_drafts=NUM_DRAFTS if drafter else 0)
        (answer,) = driver.generate([prompt], 50, [sampling])
        answers.append(tokenizer.decode(answer, skip_special_tokens=True))
        assert drafter is None or driver.num_accepted > 10
    assert answers[0] == answers[1]
    assert len(json.loads(answers[0])) == 12


@pytest.mark.parametrize(
    ("token_ids", "limit", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 2, [4, 5]),
        # As far as the match is sure.
        ([1, 2, 3, 4, 5, 6, 8, 2, 3], 5, [4, 5]),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 5, [4, 5, 6, 1, 2]),
        # The latest of the longest.
        ([1, 2, 7, 0, 1, 2, 8, 1, 2], 2, [8, 1]),
        ([3, 1, 2, 7, 0, 1, 2, 8, 3, 1, 2], 2, [7, 0]),
        # It goes round.
        ([9, 4, 5, 4, 5, 4, 5], 5, [4, 5, 4, 5, 4]),
        ([6, 6, 6, 6, 6], 3, [6, 6, 6]),
        # One token is no match, and before the first there is none.
        ([1, 2, 3, 2], 5, []),
        ([1], 5, []),
        ([2, 2], 5, []),
    ],
)
def test_what_followed_before(token_ids: list[int], limit: int, expected: list[int]):
    assert continuation(np.array(token_ids, np.int32), limit, 2, 3).tolist() == expected
