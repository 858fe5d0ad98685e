"""Grammars through the engine's door, with the default model: every text matches, whatever happens around it."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from pageloom.client import EngineClient
from pageloom.errors import InvalidRequest
from pageloom.local_stack import LocalStack
from pageloom.model_files import locate_model
from pageloom.outputs import ChoiceFinished, FinishReason, TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import load_tokenizer
from tests.e2e.test_greedy_equality import generate, running_client, stack_config
from tests.support.serving import free_port, metric

TOKENIZER = load_tokenizer(locate_model(""))
QUESTION = "<|im_start|>user\nDescribe a person as JSON.<|im_end|>\n<|im_start|>assistant\n"
PROMPT = tuple(TOKENIZER.encode(QUESTION, add_special_tokens=False))
GRAMMAR = json.dumps({
    "grammars": [{
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "maxItems": 4},
            },
            "required": ["name", "age", "tags"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": " ?"},
        }
    }]
})  # fmt: skip
SAMPLING = SamplingParams(seed=1, temperature=1.0, max_tokens=200, grammar=GRAMMAR)


class Answer:
    """What one choice came to."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_logprobs = 0
        self.finished: ChoiceFinished | None = None

    def check(self) -> None:
        assert self.finished is not None
        assert self.finished.reason is FinishReason.STOP, self.finished
        person = json.loads(TOKENIZER.decode(self.token_ids, skip_special_tokens=True))
        assert person.keys() == {"name", "age", "tags"}
        assert 0 <= person["age"] <= 150
        assert 2 <= len(person["tags"]) <= 4


async def answers(client: EngineClient, name: str, sampling: SamplingParams, n: int = 1) -> list[Answer]:
    choices = [Answer() for _ in range(n)]
    async for event in client.generate(
        GenerateRequest(request_id=name, prompt_token_ids=PROMPT, sampling=sampling, n=n)
    ):
        assert isinstance(event, TokensGenerated | ChoiceFinished)
        choice = choices[event.choice_index]
        if isinstance(event, TokensGenerated):
            assert event.first_index == len(choice.token_ids)
            choice.token_ids += event.token_ids
            choice.num_logprobs += len(event.logprobs)
        else:
            choice.finished = event
    return choices


async def refusal(client: EngineClient, name: str, sampling: SamplingParams) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await answers(client, name, sampling)
    return caught.value


@pytest.mark.timeout(120)
async def test_beside_others_and_under_preemption():
    """The memory holds two of these choices to their ends at most, and eight run."""
    port = free_port()
    config = stack_config(port, num_blocks=16, block_size=16, max_model_len=256)
    async with LocalStack(config, lambda _loading: None) as stack, await running_client(stack) as client:
        plain = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        bad = replace(SAMPLING, grammar='{"grammars": [{"lark_grammar": "start: nothing"}]}')
        alone = await generate(client, "plain-alone", list(PROMPT), plain)
        seeded = (await answers(client, "seeded-alone", SAMPLING))[0]
        (four, (crowded_seeded,), (greedy,), refused) = await asyncio.gather(
            answers(client, "four", replace(SAMPLING, logprobs=2, top_p=0.95), n=4),
            answers(client, "seeded", SAMPLING),
            answers(client, "greedy", replace(SAMPLING, temperature=0.0, repetition_penalty=1.1, min_tokens=190)),
            refusal(client, "bad", bad),
        )
        crowded = await generate(client, "plain", list(PROMPT), plain)
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/metrics")
        resumed = [
            event
            async for event in client.generate(
                GenerateRequest(
                    request_id="resumed", prompt_token_ids=PROMPT, sampling=SAMPLING,
                    resume=((0, tuple(seeded.token_ids[:7])),),
                )
            )
        ]  # fmt: skip
    for choice in (seeded, crowded_seeded, greedy, *four):
        choice.check()
    assert len({tuple(choice.token_ids) for choice in four}) == 4
    assert all(choice.num_logprobs == len(choice.token_ids) for choice in four)
    assert crowded_seeded.token_ids == seeded.token_ids
    assert alone == crowded
    assert metric(metrics.text, "pageloom_num_preemptions_total") > 0
    assert refused.param == "grammar"
    assert "the grammar cannot be used" in refused.message
    tokens = [token_id for event in resumed if isinstance(event, TokensGenerated) for token_id in event.token_ids]
    assert tokens == seeded.token_ids[7:]
