"""Embeddings of the default model: beside transformers', under preemption, and near for what means the same."""

from __future__ import annotations

import asyncio
import math
from itertools import combinations

import httpx
import numpy as np
import openai
import pytest
import torch

from pageloom.client import EngineClient
from pageloom.local_stack import LocalStack
from pageloom.outputs import ChoiceFinished
from pageloom.policies import Pooling
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from tests.e2e.test_greedy_equality import make_prompts, running_client, stack_config
from tests.support.reference_model import reference_model
from tests.support.serving import free_port, metric

LENGTHS = (34, 128, 2, 70, 16, 47)


@torch.inference_mode()
def reference(prompt: list[int]) -> dict[Pooling, torch.Tensor]:
    states: torch.Tensor = reference_model().base_model(torch.tensor([prompt])).last_hidden_state[0]
    return {Pooling.last: states[-1], Pooling.mean: states.mean(dim=0)}


async def embed(client: EngineClient, name: str, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    request = GenerateRequest(
        request_id=name, prompt_token_ids=tuple(prompt), sampling=SamplingParams(), pooling=pooling
    )
    (event,) = [event async for event in client.generate(request)]
    assert isinstance(event, ChoiceFinished)
    return torch.from_numpy(np.frombuffer(event.embedding, "<f4").copy())


async def generate(client: EngineClient, name: str, prompt: list[int]) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    request = GenerateRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling)
    async for _ in client.generate(request):
        pass


@pytest.mark.timeout(600)
async def test_equal_to_transformers_beside_generation_that_preempts():
    """The memory holds one of the longest and little more; most prompts take several chunks."""
    prompts = make_prompts(LENGTHS)
    expected = [await asyncio.to_thread(reference, prompt) for prompt in prompts]
    metrics_port = free_port()
    config = stack_config(metrics_port, num_blocks=9, block_size=16, max_model_len=128, max_num_batched_tokens=32)
    async with LocalStack(config, lambda _loading: None) as stack, await running_client(stack) as client:
        others = asyncio.gather(*(generate(client, f"other-{index}", prompts[0]) for index in range(3)))
        asked = [(index, pooling) for pooling in Pooling for index in range(len(prompts))]
        vectors = await asyncio.gather(
            *(embed(client, f"{pooling}-{index}", prompts[index], pooling) for index, pooling in asked)
        )
        await others
        for vector, (index, pooling) in zip(vectors, asked, strict=True):
            assert torch.cosine_similarity(vector, expected[index][pooling], dim=0) > 0.99999
            torch.testing.assert_close(vector, expected[index][pooling], atol=1e-2, rtol=1e-3)
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")
    assert metric(metrics.text, "pageloom_num_preemptions_total") > 0


GROUPS = (
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("Stock prices fell sharply on Monday.", "Shares dropped steeply at the start of the week."),
    ("Water boils at one hundred degrees.", "The boiling point of water is 100 degrees Celsius."),
)


def test_what_means_the_same_is_nearer(client: openai.OpenAI, model_name: str):
    """SmolLM2 was not trained for it, so only means over groups are compared."""
    texts = [text for group in GROUPS for text in group]
    answer = client.embeddings.create(model=model_name, input=texts)
    vectors = [np.array(entry.embedding) for entry in answer.data]
    assert all(math.isclose(float(vector @ vector), 1, abs_tol=1e-5) for vector in vectors)
    assert len(vectors[0]) == 576
    alike: list[float] = []
    unlike: list[float] = []
    for one, other in combinations(range(len(texts)), 2):
        (alike if one // 2 == other // 2 else unlike).append(float(vectors[one] @ vectors[other]))
    assert np.mean(alike) > np.mean(unlike)


def test_batched_alone_and_as_tokens_it_is_the_same(client: openai.OpenAI, model_name: str):
    texts = ["one", "two words", "and a third one that is somewhat longer than the others are"]
    together = client.embeddings.create(model=model_name, input=texts)
    assert together.usage.prompt_tokens == together.usage.total_tokens > 0
    for text, entry in zip(texts, together.data, strict=True):
        alone = client.embeddings.create(model=model_name, input=text, encoding_format="float").data[0].embedding
        assert np.dot(alone, entry.embedding) == pytest.approx(1, abs=1e-3)
        short = client.embeddings.create(model=model_name, input=text, dimensions=64).data[0].embedding
        assert short == pytest.approx(np.array(alone[:64]) / np.linalg.norm(alone[:64]), abs=1e-2)
