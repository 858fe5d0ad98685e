"""The real stack with speculation answers as the one without, token for token, and faster where answers repeat."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from benchmarks.repeating_prompts import REPEATING, VARIED
from pageloom.client import EngineClient
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack
from pageloom.model_files import locate_model
from pageloom.outputs import TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from pageloom.stack_config import StackConfig
from pageloom.tokenizer import load_tokenizer
from tests.support.serving import free_port, metric

NUM_TOKENS = 128
TOKENIZER = load_tokenizer(locate_model(""))
PROMPTS = [
    tuple(TOKENIZER.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False))
    for text in (*REPEATING[::2], *VARIED[::2])
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
JSON_OF_NAMES = (
    '{"grammars": [{"json_schema": {"type": "object", "properties": {"names": {"type": "array", "items": '
    '{"enum": ["Riverside", "Library"]}, "minItems": 6, "maxItems": 6}}, "required": ["names"]}}]}'
)
# What else a request may ask for, each with a prompt whose answer repeats it.
ASKED = [
    SamplingParams(seed=1, temperature=0.6, top_p=0.9, max_tokens=60, logprobs=2),
    SamplingParams(seed=2, temperature=0.4, max_tokens=60, presence_penalty=0.3, repetition_penalty=1.05),
    SamplingParams(seed=3, temperature=0.3, max_tokens=60, min_p=0.1, min_tokens=30, logit_bias={28: 1.0}),
    SamplingParams(seed=4, temperature=0.5, max_tokens=80, grammar=JSON_OF_NAMES),
    SamplingParams(seed=5, temperature=0.7, max_tokens=60, stop_token_ids=(30,)),
]


@asynccontextmanager
async def running(method: str, **worker) -> AsyncIterator[tuple[EngineClient, int]]:
    """The engine, and the port of its scheduler's metrics."""
    metrics_port = free_port()
    config = StackConfig(
        scheduler=SchedulerConfig(metrics_port=metrics_port, log_level="warning"),
        worker=WorkerConfig(model="", speculative_method=method, log_level="warning", **worker),
        gateway=None,
    )
    async with LocalStack(config, lambda _loading: None) as stack:
        await stack.wait_until_ready()
        async with EngineClient(stack.scheduler_address) as client:
            async for serving in client.watch_serving():
                if serving:
                    break
            yield client, metrics_port


async def answer(client: EngineClient, request: GenerateRequest) -> list[list[tuple[int, object]]]:
    """Of each choice the tokens, with their log-probabilities if there are any."""
    choices: list[list[tuple[int, object]]] = [[] for _ in range(request.n)]
    async for event in client.generate(request):
        if isinstance(event, TokensGenerated):
            of_tokens = event.logprobs or (None,) * len(event.token_ids)
            choices[event.choice_index] += zip(event.token_ids, of_tokens, strict=True)
    return choices


async def ask_all(client: EngineClient) -> list[list[list[tuple[int, object]]]]:
    """Two at a time: with more of them, guessing need not pay."""
    requests = [
        GenerateRequest(request_id=f"greedy-{index}", prompt_token_ids=prompt, sampling=GREEDY)
        for index, prompt in enumerate(PROMPTS)
    ]
    requests += [
        GenerateRequest(
            request_id=f"asked-{index}", prompt_token_ids=PROMPTS[index], sampling=sampling, n=1 + index % 2
        )
        for index, sampling in enumerate(ASKED)
    ]
    slots = asyncio.Semaphore(2)

    async def ask(request: GenerateRequest) -> list[list[tuple[int, object]]]:
        async with slots:
            return await answer(client, request)

    return list(await asyncio.gather(*map(ask, requests)))


@pytest.mark.timeout(600)
async def test_every_answer_is_the_same():
    async with running("none") as (client, _):
        expected = await ask_all(client)
    async with running("ngram") as (client, metrics_port):
        answers = await ask_all(client)
        exposition = (await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")).text
    assert [len(choice) for choices in answers[: len(PROMPTS)] for choice in choices] == [NUM_TOKENS] * 20
    assert answers == expected
    num_accepted = metric(exposition, "pageloom_spec_decode_num_accepted_tokens_total")
    assert num_accepted > 200, "nothing was guessed"
    assert num_accepted == metric(exposition, "pageloom_spec_decode_num_accepted_tokens_per_pos_total")
    assert num_accepted <= metric(exposition, "pageloom_spec_decode_num_draft_tokens_total")
    # In a fourth of the memory that they would like to have, they preempt each other.
    requests = [
        GenerateRequest(request_id=f"crowded-{index}", prompt_token_ids=prompt, sampling=GREEDY)
        for index, prompt in enumerate(PROMPTS[:6])
    ]
    async with running("ngram", num_blocks=13, max_model_len=400) as (client, metrics_port):
        crowded = await asyncio.gather(*(answer(client, request) for request in requests))
        exposition = (await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")).text
    assert list(crowded) == expected[:6]
    assert metric(exposition, "pageloom_num_preemptions_total") > 0
