"""Log-probabilities of prompts: in the echo, as evaluation tools read them, and as vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.openai import prompt_logprobs
from pageloom.outputs import GenerateEvent
from pageloom.requests import GenerateRequest
from tests.gateway.test_chat import events
from tests.support.gateway_server import GatewayServer
from tests.support.scripted_engine import finished, says, scored, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")


def choices_of(response: Any, stream: bool) -> dict[int, dict[str, Any]]:
    """The choices, put together again if they were streamed."""
    if not stream:
        return {choice["index"]: choice for choice in response.json()["choices"]}
    choices: dict[int, dict[str, Any]] = {}
    for body in events(response.text):
        for choice in body["choices"]:
            whole = choices.setdefault(choice["index"], {"text": "", "logprobs": {}})
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            for name, column in (choice["logprobs"] or {}).items():
                whole["logprobs"].setdefault(name, []).extend(column)
    return choices


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_echo_with_log_probabilities(gateway: GatewayServer, stream: bool, n: int):
    text = "Hello 😀, how are you?"
    gateway.engine.script = says(gateway.encode(" fine"))
    response = await gateway.complete(prompt=text, echo=True, logprobs=2, max_tokens=1, stream=stream, n=n)
    prompt = gateway.encode(text)
    choices = choices_of(response, stream)
    assert choices.keys() == set(range(n))
    for choice in choices.values():
        assert choice["text"] == text + " fine"
        columns = choice["logprobs"]
        assert {len(column) for column in columns.values()} == {len(prompt) + 1}
        assert columns["token_logprobs"] == [None, *(-float(index) for index in range(1, len(prompt))), -0.5]
        assert columns["top_logprobs"][0] is None
        assert columns["text_offset"][-1] == len(text)
        assert columns["text_offset"] == sorted(columns["text_offset"])
    (asked,) = gateway.engine.requests
    assert (asked.sampling.prompt_logprobs, asked.sampling.logprobs) == (2, 2)


async def test_as_evaluation_tools_read_it(gateway: GatewayServer):
    """lm-eval sums `token_logprobs[context:-1]`, and takes a token for greedy if it equals the best of its top."""
    gateway.engine.script = says(gateway.encode("x"))
    prompts = [gateway.encode("one two three four five"), gateway.encode("six seven")]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = (await gateway.complete(**body)).json()
    for choice, prompt in zip(answer["choices"], prompts, strict=True):
        columns = choice["logprobs"]
        assert len(columns["token_logprobs"]) == len(prompt) + 1
        logprobs, tops = columns["token_logprobs"][1:-1], columns["top_logprobs"][1:-1]
        greedy = [logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True)]
        assert greedy == [index % 2 == 0 for index in range(1, len(prompt))]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


@pytest.mark.parametrize("stream", [False, True])
async def test_scoring_alone(gateway: GatewayServer, stream: bool):
    """max_tokens 0: the engine draws a token that nobody sees or pays."""
    text = "one two three"
    gateway.engine.script = says(gateway.encode("x"))
    response = await gateway.complete(prompt=text, echo=True, logprobs=0, max_tokens=0, stream=stream, n=2)
    for choice in choices_of(response, stream).values():
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0]
        assert "".join(choice["logprobs"]["tokens"]) == text
    if not stream:
        assert response.json()["usage"]["completion_tokens"] == 0
    (asked,) = gateway.engine.requests
    assert (asked.n, asked.sampling.max_tokens) == (1, 1)


async def test_a_prompt_of_one_token(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    choice = (await gateway.complete(prompt=[12], echo=True, logprobs=1, max_tokens=1)).json()["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]


async def test_tokens_of_another_choice_wait_for_the_echo(gateway: GatewayServer):
    """Only those of the first choice are sure to come after the log-probabilities of the prompt."""
    output = gateway.encode("x")

    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        yield tokens(1, 0, output, scored=True)
        yield finished(1, 1)
        yield scored(request.prompt_token_ids, 1, 3, 1)
        yield tokens(0, 0, output, scored=True)
        yield finished(0, 1)

    gateway.engine.script = script
    response = await gateway.complete(prompt=[20, 21, 22], echo=True, logprobs=1, max_tokens=1, n=2, stream=True)
    for choice in choices_of(response, stream=True).values():
        assert choice["text"].endswith("x")
        assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5]


async def test_lost_parts_are_an_error(gateway: GatewayServer):
    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        yield scored(request.prompt_token_ids, 2, 3, 1)
        yield finished(0, 0)

    gateway.engine.script = script
    response = await gateway.complete(prompt=[20, 21, 22], echo=True, logprobs=1)
    assert response.status_code == 500
    assert "prompt token 1 was lost" in response.json()["error"]["message"]


@pytest.mark.parametrize("n", [1, 2])
async def test_prompt_logprobs_of_completions(gateway: GatewayServer, n: int):
    gateway.engine.script = says(gateway.encode("x"))
    answer = (await gateway.complete(prompt=[[20, 21, 22], [30, 31]], prompt_logprobs=1, n=n)).json()
    assert [len(choice["prompt_logprobs"]) for choice in answer["choices"]] == [3] * n + [2] * n
    first = answer["choices"][0]
    assert first["logprobs"] is None
    null, one, two = first["prompt_logprobs"]
    assert null is None
    spelled = gateway.model.tokenizer.token_bytes
    assert one == {
        "21": {"logprob": -1.0, "rank": 40, "decoded_token": spelled(21).decode("utf-8", "replace")},
        "11": {"logprob": -0.5, "rank": 1, "decoded_token": spelled(11).decode("utf-8", "replace")},
    }
    # The token itself comes first.
    assert list(one) == ["21", "11"]
    assert {token_id: entry["rank"] for token_id, entry in two.items()} == {"22": 1}


async def test_prompt_logprobs_of_chats(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    answer = (await gateway.chat(prompt_logprobs=0)).json()
    assert answer["choices"][0]["message"]["content"] == "x"
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in answer["choices"][0]


async def test_both_at_once_each_with_its_own_number(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    answer = await gateway.complete(prompt=[20, 21, 22], echo=True, logprobs=1, prompt_logprobs=3)
    (choice,) = answer.json()["choices"]
    assert len(choice["prompt_logprobs"][1]) == 4
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    assert gateway.engine.requests[0].sampling.prompt_logprobs == 3


async def test_without_them_the_answer_does_not_speak_of_them(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    assert "prompt_logprobs" not in (await gateway.complete()).json()["choices"][0]
    assert "prompt_logprobs" not in (await gateway.chat()).json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_refusals(gateway: GatewayServer, fields: dict[str, Any], param: str):
    for response in (await gateway.complete(**fields), await gateway.chat(**fields)):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
    assert gateway.engine.requests == []


async def test_the_bound_on_all_of_them(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch):
    gateway.engine.script = says(gateway.encode("x"))
    monkeypatch.setattr(prompt_logprobs, "MAX_PROMPT_LOGPROBS_IN_ALL", 30)
    fields = {"echo": True, "logprobs": 2, "max_tokens": 1}
    assert (await gateway.complete(prompt=[[20] * 5, [21] * 5], **fields)).status_code == 200
    refused = await gateway.complete(prompt=[[20] * 5, [21] * 6], **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"
    assert "33 log-probabilities of prompt tokens, at most 30" in refused.json()["error"]["message"]
