"""Greedy output equals transformers' token for token in fp32: alone, all at once, and under preemption."""

import asyncio
import functools
import random
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pageloom.client import EngineClient
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack
from pageloom.outputs import TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from pageloom.stack_config import StackConfig
from tests.support.reference_model import reference_greedy
from tests.support.serving import free_port, metric

NUM_NEW_TOKENS = 64
PROMPT_LENS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 200, 255, 300, 411, 600)
MAX_TOKEN_ID = 49_000


def make_prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(20_260_101)
    return [[rng.randrange(20, MAX_TOKEN_ID) for _ in range(length)] for length in lengths]


def stack_config(metrics_port: int | None = None, **worker: Any) -> StackConfig:
    worker_config = WorkerConfig(
        model="",
        dtype="float32",
        max_num_seqs=32,
        max_num_batched_tokens=256,
        log_level="warning",
    )
    return StackConfig(
        scheduler=SchedulerConfig(
            metrics_port=metrics_port, max_num_seqs=32, max_num_batched_tokens=256, log_level="warning"
        ),
        worker=replace(worker_config, **worker),
        gateway=None,
    )


@functools.cache
def reference(lengths: tuple[int, ...]) -> list[list[int]]:
    return reference_greedy(make_prompts(lengths), NUM_NEW_TOKENS)


GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)


async def generate(client: EngineClient, name: str, prompt: list[int], sampling: SamplingParams = GREEDY) -> list[int]:
    request = GenerateRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling)
    tokens: list[int] = []
    async for event in client.generate(request):
        if isinstance(event, TokensGenerated):
            assert event.first_index == len(tokens)
            tokens.extend(event.token_ids)
    return tokens


async def generate_all(client: EngineClient, name: str, prompts: list[list[int]]) -> list[list[int]]:
    return list(await asyncio.gather(*(generate(client, f"{name}-{i}", prompt) for i, prompt in enumerate(prompts))))


async def running_client(stack: LocalStack) -> EngineClient:
    await stack.wait_until_ready()
    client = EngineClient(stack.scheduler_address)
    async for serving in client.watch_serving():
        if serving:
            return client
    raise AssertionError("the engine never served")


@pytest.mark.timeout(600)
async def test_alone_and_all_at_once():
    prompts = make_prompts(PROMPT_LENS)
    expected = await asyncio.to_thread(reference, PROMPT_LENS)
    config = stack_config(num_blocks=1024)
    async with LocalStack(config, lambda _loading: None) as stack, await running_client(stack) as client:
        alone = [await generate(client, f"alone-{i}", prompt) for i, prompt in enumerate(prompts)]
        together = await generate_all(client, "together", prompts)
        await check_seeded_draws(client, prompts[4:7])
    assert alone == expected
    assert together == expected


async def check_seeded_draws(client: EngineClient, prompts: list[list[int]]) -> None:
    """A seeded request draws the same tokens alone and in company, since its random numbers are its own."""
    samplings = [replace(GREEDY, temperature=1.0, top_p=0.9, seed=seed) for seed in range(len(prompts))]
    pairs = list(zip(prompts, samplings, strict=True))
    alone = [await generate(client, f"drawn-alone-{i}", *pair) for i, pair in enumerate(pairs)]
    drawn = await asyncio.gather(*(generate(client, f"drawn-{i}", *pair) for i, pair in enumerate(pairs)))
    assert list(drawn) == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_blocks", "lengths"),
    [
        # Two requests at most fit, and neither to its end beside the other: the smallest such memory.
        (7, (34, 35, 5, 16, 47)),
        # The longest alone just fits.
        (42, PROMPT_LENS),
    ],
)
async def test_with_preemption(num_blocks: int, lengths: tuple[int, ...]):
    prompts = make_prompts(lengths)
    expected = await asyncio.to_thread(reference, lengths)
    metrics_port = free_port()
    config = stack_config(metrics_port, num_blocks=num_blocks, block_size=16, max_model_len=16 * num_blocks)
    async with LocalStack(config, lambda _loading: None) as stack, await running_client(stack) as client:
        together = await generate_all(client, "together", prompts)
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")
    assert together == expected
    assert metric(metrics.text, "pageloom_num_preemptions_total") > 0
