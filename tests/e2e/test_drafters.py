"""The default model with drafters in a whole stack: the answers are those of the stack without."""

import asyncio

import httpx
import pytest

from tests.support.serving import Serving, serving

MODEL = "SmolLM2-135M-Instruct"
PROMPTS = [
    "Repeat this list three times: apple, pear, plum, cherry.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "Once upon a time there was a miller who had three sons.",
]


def ask_all(url: str, **fields: object) -> list[str]:
    async def ask(client: httpx.AsyncClient, prompt: str) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "ignore_eos": True, "seed": 5, **fields}
        response = await client.post(f"{url}/v1/completions", json=body, timeout=120)
        text: str = response.json()["choices"][0]["text"]
        return text

    async def all_at_once() -> list[str]:
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))

    return asyncio.run(all_at_once())


@pytest.mark.parametrize(
    "flags", [("--speculative-method", "suffix"), ("--speculative-model", "layers:24", "--num-speculative-tokens", "3")]
)
def test_answers_stay_the_same(stack: Serving, tmp_path, flags):
    expected = ask_all(stack.url, temperature=0)
    sampled = ask_all(stack.url, temperature=0.7, top_p=0.9)
    with serving(tmp_path, *flags) as running:
        assert ask_all(running.url, temperature=0) == expected
        assert ask_all(running.url, temperature=0.7, top_p=0.9) == sampled
        # Once more, with the prompts' blocks in the cache and the answers in the memory.
        assert ask_all(running.url, temperature=0) == expected
        assert running.scheduler_metric("pageloom_spec_decode_num_draft_tokens_total") > 0
