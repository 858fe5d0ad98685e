"""The suffix drafter behind a runner: it guesses from prompt and answer, and from what others were answered."""

import pytest

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError
from pageloom.policies import Pooling
from tests.support.plan_driver import PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_runner import load, make_prompts
from worker_svc.runner import ModelRunner

LENGTH = 60


pytestmark = pytest.mark.usefixtures("free_drafts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder)
    return folder


def drafting(folder, **settings) -> ModelRunner:
    runner = load(folder, dtype="float32", speculative_method="suffix", **settings)
    runner.warm_up()
    return runner


def generate(runner: ModelRunner, prompts: list[list[int]], epoch: int, **settings) -> tuple[list[list[int]], int]:
    """Outputs, and how many guesses were right."""
    driver = PlanDriver(runner, epoch=epoch, num_drafts=4)
    return driver.generate(prompts, LENGTH, **settings), driver.num_accepted


def test_an_answer_that_came_before_is_guessed(folder):
    """The same prompt again gets the same answer, which is in the memory by then; without a memory it is not."""
    prompts = make_prompts([40])
    plain = PlanDriver(load(folder, dtype="float32")).generate(prompts, LENGTH)
    for memory_bytes in (1 << 20, 0):
        runner = drafting(folder, suffix_memory_bytes=memory_bytes)
        first, num_first = generate(runner, prompts, 1)
        second, num_second = generate(runner, prompts, 2)
        assert first == second == plain
        assert (num_second > num_first + 10) == (memory_bytes > 0)


def test_a_batch_with_pooled_prompts_and_slots_that_are_used_again(folder):
    prompts = make_prompts([33, 5, 1, 64, 17, 2, 90, 40, 12, 7, 3])
    pooling = [Pooling.last if index % 4 == 3 else None for index in range(len(prompts))]
    plain = PlanDriver(load(folder, dtype="float32")).generate(prompts, LENGTH, pooling=pooling)
    runner = drafting(folder, max_num_seqs=3)
    assert generate(runner, prompts, 1, pooling=pooling)[0] == plain
    # An epoch begins with empty slots, whatever was bound before.
    assert generate(runner, prompts, 2, pooling=pooling)[0] == plain


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative_method": "draft-model"}, "--speculative-method draft-model needs --speculative-model"),
        (
            {"speculative_method": "suffix", "speculative_model": "layers:1"},
            "--speculative-model does not go with --speculative-method suffix",
        ),
        ({"simulate": "fixed:2ms", "speculative_model": "layers:1"}, "with --simulate nothing can be guessed"),
        ({"suffix_memory_bytes": -1}, "--suffix-memory-bytes"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(InvalidConfig, match=message):
        WorkerConfig(model="", **settings)


def test_drafts_of_another_kind_or_size(folder, tmp_path):
    with pytest.raises(InvalidConfig, match="layers:3: the model has 3 layers; give layers:1 to layers:2"):
        load(folder, speculative_model="layers:3")
    with pytest.raises(InvalidConfig, match=r"--speculative-method eagle3: --speculative-model .* is not an EAGLE-3"):
        load(folder, speculative_model=str(folder), speculative_method="eagle3")
    make_checkpoint(tmp_path, vocab_size=212)
    with pytest.raises(ModelLoadError, match=r"has 212 tokens and the model tiny.* 211; they must have the same"):
        load(folder, speculative_model=str(tmp_path))
