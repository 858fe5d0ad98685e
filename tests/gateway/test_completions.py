"""Text completions, through the official client and a real socket."""

from typing import Any

import pytest

from tests.gateway.test_chat import events
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("prompt", "num_prompts"),
    [("Hi there", 1), ([12, 13, 14], 1), (["Hi", "there", "you"], 3), ([[12], [13, 14]], 2)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_kind_of_prompt(gateway: GatewayServer, prompt: Any, num_prompts: int, stream: bool):
    """Choices are numbered prompt * n + choice."""
    encode = gateway.encode

    async def script(request):
        for choice in range(request.n):
            yield tokens(choice, 0, encode(f"{request.prompt_token_ids[0]}/{choice}"))
            yield finished(choice, 1)

    gateway.engine.script = script
    response = await gateway.complete(prompt=prompt, n=2, stream=stream)
    texts = [""] * (2 * num_prompts)
    for body in events(response.text) if stream else [response.json()]:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    given = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    first_ids = [(encode(one) if isinstance(one, str) else one)[0] for one in given]
    assert texts == [f"{token_id}/{choice}" for token_id in first_ids for choice in range(2)]
    if not stream:
        assert [choice["index"] for choice in response.json()["choices"]] == list(range(2 * num_prompts))


async def test_usage_adds_up_over_prompts(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two"), num_cached_tokens=4)
    answer = await gateway.openai.completions.create(model=MODEL_NAME, prompt=[[1] * 5, [2] * 7], n=2)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 8)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 8


async def test_default_length(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    await gateway.complete()
    await gateway.complete(prompt=[5] * (MODEL.max_model_len - 4))
    assert [request.sampling.max_tokens for request in gateway.engine.requests] == [16, 4]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo(gateway: GatewayServer, stream: bool):
    gateway.engine.script = says(gateway.encode(" world"))
    response = await gateway.complete(prompt="Hello 😀", echo=True, n=2, stream=stream)
    texts = ["", ""]
    for body in events(response.text) if stream else [response.json()]:
        for choice in body["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["Hello 😀 world"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_no_tokens_asked_for(gateway: GatewayServer, stream: bool):
    response = await gateway.complete(prompt=["Hello", "you"], echo=True, max_tokens=0, stream=stream)
    bodies = events(response.text) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (0, "Hello", "length"),
        (1, "you", "length"),
    ]
    assert gateway.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(gateway: GatewayServer, stream: bool):
    token_ids = gateway.encode("ok 😀")
    gateway.engine.script = says(token_ids)
    response = await gateway.complete(logprobs=1, stream=stream)
    columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for body in events(response.text) if stream else [response.json()]:
        for name, column in columns.items():
            column.extend((body["choices"][0]["logprobs"] or {}).get(name, []))
    assert {len(column) for column in columns.values()} == {len(token_ids)}
    assert columns["tokens"][0] == "ok"
    assert all(token.startswith(("ok", " ", "bytes:\\x")) for token in columns["tokens"])
    assert columns["text_offset"] == [0, 2, *[3] * (len(token_ids) - 2)]
    for token, logprob, top in zip(*list(columns.values())[:3], strict=True):
        assert logprob == top[token] == max(top.values())


async def test_a_half_character_in_the_prompt_goes_on(gateway: GatewayServer):
    token_ids = gateway.encode("😀!")
    gateway.engine.script = says(token_ids[1:])
    answer = await gateway.openai.completions.create(model=MODEL_NAME, prompt=[token_ids[:1]])
    assert answer.choices[0].text == "😀!"


async def test_joined_tokens_are_taken_apart(gateway: GatewayServer):
    """Several steps may come in one event; what is after a stop string is dropped and not counted."""
    token_ids = gateway.encode("one two STOP three four")

    async def script(_request):
        yield tokens(0, 0, token_ids)
        yield finished(0, len(token_ids))

    gateway.engine.script = script
    answer = await gateway.openai.completions.create(model=MODEL_NAME, prompt="x", stop="STOP")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one two ", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(gateway.encode("one two STOP"))
