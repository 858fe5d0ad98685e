"""Log-probabilities of prompts of the default model: beside transformers', and beside those of its own generation."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import torch

from pageloom.client import EngineClient
from pageloom.local_stack import LocalStack
from pageloom.outputs import PromptLogprobs
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from tests.e2e.test_greedy_equality import make_prompts, running_client, stack_config
from tests.support.reference_model import reference_model
from tests.support.serving import Serving, free_port, metric

LENGTHS = (34, 35, 2, 70, 16, 47)


@torch.inference_mode()
def reference(prompt: list[int]) -> torch.Tensor:
    logits: torch.Tensor = reference_model()(torch.tensor([prompt])).logits[0, :-1]
    return logits.log_softmax(dim=-1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


async def score(client: EngineClient, name: str, prompt: list[int]) -> list[float]:
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=1)
    request = GenerateRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling)
    logprobs: list[float] = []
    async for event in client.generate(request):
        if isinstance(event, PromptLogprobs):
            assert event.first_index == len(logprobs) + 1
            logprobs += event.logprobs
    return logprobs


@pytest.mark.timeout(600)
async def test_equal_to_transformers_under_preemption():
    """Two of them at most fit, and neither to its end beside the other; some prompts take several chunks."""
    prompts = make_prompts(LENGTHS)
    expected = [await asyncio.to_thread(reference, prompt) for prompt in prompts]
    metrics_port = free_port()
    config = stack_config(metrics_port, num_blocks=8, block_size=16, max_model_len=128, max_num_batched_tokens=32)
    async with LocalStack(config, lambda _loading: None) as stack, await running_client(stack) as client:
        # The second time, the first's blocks are cached.
        for turn in range(2):
            scores = await asyncio.gather(
                *(score(client, f"{turn}-{index}", prompt) for index, prompt in enumerate(prompts))
            )
            for one, other in zip(scores, expected, strict=True):
                torch.testing.assert_close(torch.tensor(one), other, atol=5e-3, rtol=0)
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")
    assert metric(metrics.text, "pageloom_num_preemptions_total") > 0


def test_the_echo_of_what_was_generated_is_as_likely(stack: Serving, model_name: str):
    """What a greedy answer was given is greedy, and as likely, when it is scored as a prompt."""
    body = {"model": model_name, "temperature": 0, "logprobs": 1}
    text = "The water cycle describes how"
    with httpx.Client(base_url=stack.url, timeout=60) as http:
        answer = http.post("/v1/completions", json={**body, "prompt": text, "max_tokens": 24}).json()["choices"][0]
        whole = text + answer["text"]
        scored = http.post(
            "/v1/completions", json={**body, "prompt": whole, "max_tokens": 1, "echo": True, "seed": 1234}
        ).json()["choices"][0]
    columns = scored["logprobs"]
    assert scored["text"].startswith(whole)
    assert columns["tokens"][-25:-1] == answer["logprobs"]["tokens"]
    assert "".join(columns["tokens"][:-1]) == whole
    assert columns["token_logprobs"][-25:-1] == pytest.approx(answer["logprobs"]["token_logprobs"], abs=0.02)
    greedy = zip(columns["token_logprobs"][-25:-1], columns["top_logprobs"][-25:-1], strict=True)
    assert all(logprob == max(top.values()) for logprob, top in greedy)
