"""Bad input: status, field and code, decided before anything reaches the engine."""

import json
import random
from typing import Any

import openai
import pytest

from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from gateway.requests.unserved_fields import RENAMED_FIELDS, UNSERVED_FIELDS
from pageloom.chats.schemas import ChatMessage
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, VOCAB_SIZE, says

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = [{"role": "user", "content": "x"}]
IMAGE = {"type": "image_url", "image_url": {"url": "http://x"}}
BAD_CALL = {"function": {"name": "f", "arguments": "{"}}
HUGE = 2**70

# Fields that both endpoints take.
SAMPLING = [
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"temperature": 1e39}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-39}, "repetition_penalty"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"n": HUGE}, "n"),
    ({"n": "2"}, "n"),
    ({"best_of": 0}, "best_of"),
    ({"best_of": 129}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"include_timeline": 1}, "include_timeline"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [0] * 129}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": "a"}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": []}, "logit_bias"),
    ({"priority": 2**31}, "priority"),
    ({"cache_salt": "s" * 129}, "cache_salt"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"ignore_eos": "no"}, "ignore_eos"),
    ({"user": 5}, "user"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    *(({name: "x"}, name) for name in (*UNSERVED_FIELDS, *RENAMED_FIELDS)),
    ({"stream_interval": 2}, "stream_interval"),
    ({"length_penalty": 0.5}, "length_penalty"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens"),
    ({"truncation_side": "middle"}, "truncation_side"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"bad_words": "word"}, "bad_words"),
    ({"request_id": ""}, "request_id"),
    ({"request_id": "a b"}, "request_id"),
    ({"request_id": "a" * 129}, "request_id"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"metadata": "x"}, "metadata"),
    ({"store": "yes"}, "store"),
]
CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": USER * 2049}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [*USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [BAD_CALL]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"modalities": ["text", "audio"]}, "modalities"),
]  # fmt: skip
COMPLETION = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["ok", ""]}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [VOCAB_SIZE]}, "prompt"),
    ({"prompt": [HUGE]}, "prompt"),
    ({"prompt": [[1], [VOCAB_SIZE]]}, "prompt"),
    ({"prompt": ["x"] * 257}, "prompt"),
    ({"prompt": ["x"] * 129, "n": 2}, "n"),
    ({"prompt": ["x"] * 129, "best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), SAMPLING + CHAT, ids=str)
async def test_chat(gateway: GatewayServer, fields: dict[str, object], param: str):
    body = {"model": MODEL_NAME, "messages": USER, **fields}
    await expect_400(gateway, "/v1/chat/completions", json.dumps(body), param)


@pytest.mark.parametrize(("fields", "param"), SAMPLING + COMPLETION, ids=str)
async def test_completions(gateway: GatewayServer, fields: dict[str, object], param: str):
    body = {"model": MODEL_NAME, "prompt": "x", **fields}
    await expect_400(gateway, "/v1/completions", json.dumps(body), param)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", '"5"'])
async def test_numbers_that_are_none(gateway: GatewayServer, number: str):
    raw = f'{{"model": "{MODEL_NAME}", "prompt": "x", "temperature": {number}}}'
    response = await post(gateway, "/v1/completions", raw)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "temperature" or error["code"] == "invalid_json"


@pytest.mark.parametrize(
    "raw",
    ["", "{", "nonsense", "[]", '"text"', "null", '{"a": "\\ud800"}', b'{"a": "\xff"}', "[" * 100_000, '{"a":' * 70],
)
async def test_bodies_that_are_no_json_object(gateway: GatewayServer, raw: str | bytes):
    response = await post(gateway, "/v1/chat/completions", raw)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_depth_is_checked_before_parsing(gateway: GatewayServer):
    def nested(depth: int, brackets: str) -> str:
        value = brackets[0] * depth + brackets[1] * depth
        return f'{{"model": "{MODEL_NAME}", "prompt": "a [ {{ \\" [", "unknown": [1, "]]", {value}]}}'

    gateway.engine.script = says(gateway.encode("x"))
    assert (await post(gateway, "/v1/completions", nested(62, "[]"))).status_code == 200
    response = await post(gateway, "/v1/completions", nested(63, "[]"))
    assert response.status_code == 400
    assert "deeper than 64" in response.json()["error"]["message"]
    # Brackets of either kind count, and so does the sum of them.
    mixed = '{"x":' + '[{"a":' * 33 + "1" + "}]" * 33 + "}"
    assert "deeper than 64" in (await post(gateway, "/v1/completions", mixed)).text
    many = '{"x": [' + "[]," * 70_000 + "[]]}"
    assert "arrays and objects" in (await post(gateway, "/v1/completions", many)).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": [5] * MODEL.max_model_len}, "prompt"),
        ("/v1/completions", {"prompt": "word " * 2000}, "prompt"),
        ("/v1/completions", {"prompt": "x" * 200_000}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": MODEL.max_model_len}, "max_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": USER, "max_completion_tokens": MODEL.max_model_len},
            "max_completion_tokens",
        ),
    ],
)
async def test_too_long(gateway: GatewayServer, path: str, fields: dict[str, object], param: str, stream: bool):
    body = {"model": MODEL_NAME, "stream": stream, **fields}
    error = await expect_400(gateway, path, json.dumps(body), param)
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {MODEL.max_model_len} tokens" in str(error["message"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_model_names(gateway: GatewayServer, path: str):
    asked = {"messages": USER, "prompt": "x"}
    response = await post(gateway, path, json.dumps({"model": "other", **asked}))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    await expect_400(gateway, path, json.dumps(asked), "model")
    await expect_400(gateway, path, json.dumps({"model": None, **asked}), "model")


async def test_official_client_raises_its_own_errors(gateway: GatewayServer):
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai.completions.create(model=MODEL_NAME, prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"


async def test_large_lists_of_wrong_items_are_cheap(gateway: GatewayServer):
    await expect_400(
        gateway, "/v1/completions", json.dumps({"model": MODEL_NAME, "prompt": [None] * 500_000}), "prompt"
    )


NASTY: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        HUGE,
        0.5,
        -0.0,
        1e300,
        -1e300,
        "",
        "x",
        "\x00",
        "5",
        "\ufffd😀",
    ),
    *([], {}, [[]], [{}], [None], [0], ["x"], [[0]], {"a": {}}, {"": None}, {"type": "text"}, {"0": 0.5}, [[["deep"]]]),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_no_combination_of_nasty_values_is_a_server_error(gateway: GatewayServer, path: str):
    gateway.engine.script = says(gateway.encode("x"))
    schemas = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, ChatMessage)
    fields = sorted(
        {name for schema in schemas for name in schema.model_fields}
        | {*UNSERVED_FIELDS, *RENAMED_FIELDS}
        | {"modalities"}
    )
    draw = random.Random(path)
    statuses = set()
    for _ in range(400):
        body = {"model": MODEL_NAME, "messages": USER, "prompt": "x", "tokens": [1]}
        if path == "/tokenize":
            del body["messages"]
        body |= {name: draw.choice(NASTY) for name in draw.sample(fields, draw.choice([1, 1, 2]))}
        if draw.random() < 0.2:
            body["messages"] = [{"role": "user", "content": "x", draw.choice(fields): draw.choice(NASTY)}]
        response = await post(gateway, path, json.dumps(body))
        assert response.status_code in (200, 400, 404), (body, response.text)
        statuses.add(response.status_code)
    assert {200, 400} <= statuses


async def post(gateway: GatewayServer, path: str, raw: str | bytes):
    return await gateway.http.post(path, content=raw, headers={"content-type": "application/json"})


async def expect_400(gateway: GatewayServer, path: str, raw: str, param: str) -> dict[str, object]:
    response = await post(gateway, path, raw)
    assert response.status_code == 400, response.text
    error: dict[str, object] = response.json()["error"]
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert param.rpartition(".")[2] in str(error["message"]) or error["code"] == "context_length_exceeded", error
    assert len(str(error["message"])) < 500
    assert gateway.engine.requests == []
    return error
