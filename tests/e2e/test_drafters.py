"""The default model with each drafter in a whole engine: the answers are those of the engine without."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from pageloom.client import EngineClient
from pageloom.requests import GenerateRequest
from tests.e2e.test_speculation import ASKED, GREEDY, PROMPTS, answer, running
from tests.support.serving import metric

SAMPLINGS = (replace(GREEDY, max_tokens=48), *(replace(ASKED[index], max_tokens=30) for index in (0, 1, 3)))


async def ask(client: EngineClient, name: str) -> list[object]:
    """All at once."""
    requests = [
        GenerateRequest(request_id=f"{name}-{index}", prompt_token_ids=prompt, sampling=sampling)
        for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=False))
    ]
    return list(await asyncio.gather(*(answer(client, request) for request in requests)))


@pytest.fixture(scope="module")
def expected() -> list[object]:
    async def plain() -> list[object]:
        async with running("none") as (client, _):
            return await ask(client, "plain")

    return asyncio.run(plain())


@pytest.mark.parametrize(
    ("method", "settings"),
    [("suffix", {}), ("draft-model", {"speculative_model": "layers:24", "num_speculative_tokens": 3})],
)
async def test_answers_stay_the_same(expected, method, settings):
    async with running(method, **settings) as (client, metrics_port):
        assert await ask(client, "first") == expected
        # Once more, with the prompts' blocks in the cache and the answers in the memory.
        assert await ask(client, "second") == expected
        exposition = (await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{metrics_port}/metrics")).text
    assert metric(exposition, "pageloom_spec_decode_num_draft_tokens_total") > 0
