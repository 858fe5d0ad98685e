"""`LLM.embed`, `encode` and `score` with the default model."""

import numpy as np
import pytest

from pageloom import LLM
from pageloom.errors import InvalidRequest
from pageloom.llm.prompts import PromptType


def test_embeddings(llm: LLM):
    prompts: list[PromptType] = ["a cat", "the stock market", llm.tokenize("a cat")[0]]
    one, other, by_ids = llm.embed(prompts)
    assert one.outputs.hidden_size == 576
    assert np.linalg.norm(one.outputs.embedding) == pytest.approx(1.0, abs=1e-5)
    assert one.prompt_token_ids == llm.tokenize("a cat")[0]
    assert one.outputs.embedding == by_ids.outputs.embedding != other.outputs.embedding


def test_without_normalization(llm: LLM):
    (plain,) = llm.embed("a cat", normalize=False)
    (encoded,) = llm.encode("a cat", pooling_task="embed")
    assert encoded.outputs.data.dtype == np.float32
    assert plain.outputs.embedding == encoded.outputs.data.tolist()
    assert np.linalg.norm(encoded.outputs.data) > 1.5


def test_scores(llm: LLM):
    near, far = llm.score("a cat", ["a kitten", "the stock market"])
    assert near.outputs.score > far.outputs.score
    (same,) = llm.score(["a cat"], ["a cat"])
    assert same.outputs.score == pytest.approx(1.0, abs=1e-5)
    assert near.prompt_token_ids == llm.tokenize("a cat")[0] + llm.tokenize("a kitten")[0]


def test_what_is_wrong_is_named(llm: LLM):
    with pytest.raises(InvalidRequest, match="data_1 has 2 prompts for 3"):
        llm.score(["a", "b"], ["c", "d", "e"])
    with pytest.raises(InvalidRequest, match="pooling_task"):
        llm.encode("a", pooling_task="classify")
    with pytest.raises(InvalidRequest, match="prompts is empty"):
        llm.embed("")
