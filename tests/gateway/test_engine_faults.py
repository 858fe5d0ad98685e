"""An engine that refuses, fails, goes away or comes back."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from gateway.served_model import ServedModel
from pageloom.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from pageloom.outputs import FinishReason
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server, until_ready
from tests.support.scripted_engine import ScriptedEngine, finished, says, tokens


@pytest.fixture
async def gateway(served_model: ServedModel):
    async with gateway_server(served_model) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_come_with_their_status(gateway: GatewayServer, stream: bool):
    cases = [
        (Overloaded("the queue is full"), 503, "server_overloaded"),
        (Unavailable("no worker"), 503, "service_unavailable"),
        (DeadlineExceeded("too late"), 504, "deadline_exceeded"),
        (ContextLengthExceeded("does not fit the KV memory", param="prompt"), 400, "context_length_exceeded"),
        (InvalidRequest("top_k is odd", param="top_k"), 400, "invalid_value"),
        (EngineError("it broke"), 500, "internal_error"),
    ]
    for error, status, code in cases:

        async def refuse(_request, error=error):
            if error:
                raise error
            yield

        gateway.engine.script = refuse
        response = await gateway.complete(stream=stream)
        body = response.json()["error"]
        assert (response.status_code, body["code"], body["message"]) == (status, code, error.message)
        assert body["param"] == error.param
        assert ("retry-after" in response.headers) == (status == 503)
        assert response.headers["content-type"] == "application/json"


async def test_overload_is_what_the_official_client_retries(gateway: GatewayServer):
    attempts = 0
    x = gateway.encode("x")

    async def script(request):
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise Overloaded("the queue is full")
        async for event in says(x)(request):
            yield event

    gateway.engine.script = script
    answer = await gateway.openai.with_options(max_retries=1).completions.create(model=MODEL_NAME, prompt="x")
    assert answer.choices[0].text == "x"


@pytest.mark.parametrize("fault", ["error event", "cancelled", "status", "early end", "lost token"])
async def test_an_error_after_the_first_byte_is_one_event(gateway: GatewayServer, fault: str):
    async def script(_request):
        yield tokens(0, 0, [100])
        await asyncio.sleep(0.02)
        if fault == "error event":
            yield finished(0, 1, FinishReason.ERROR, error_message="the logits are not numbers")
        elif fault == "cancelled":
            yield finished(0, 1, FinishReason.CANCELLED)
        elif fault == "status":
            raise Unavailable("the worker was lost")
        elif fault == "lost token":
            yield tokens(0, 5, [100])

    gateway.engine.script = script
    response = await gateway.complete(stream=True)
    assert response.status_code == 200
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert "[DONE]" not in response.text
    error = json.loads(blocks[-1].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "server_error"
    assert all("error" not in json.loads(block.removeprefix("data: ")) for block in blocks[:-1])
    stream = await gateway.openai.completions.create(model=MODEL_NAME, prompt="x", stream=True)
    with pytest.raises(openai.APIError):
        assert [chunk async for chunk in stream]
    assert (await gateway.complete()).status_code in (500, 503)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
OPENAI_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
# Route, fields, the field that gave the grammar.
CONSTRAINED = [
    ("chat/completions", CHAT | {"response_format": OPENAI_FORMAT}, "response_format"),
    ("chat/completions", CHAT | {"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}, "tools"),
    ("completions", {"prompt": "x", "structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ("responses", {"input": "x", "text": {"format": FORMAT}}, "text.format"),
    ("messages", CHAT | {"max_tokens": 50, "output_config": {"format": FORMAT}}, "output_config.format"),
]


@pytest.mark.parametrize(("route", "fields", "param"), CONSTRAINED)
async def test_a_grammar_that_fails_on_the_way_is_the_requests_fault(
    gateway: GatewayServer, route: str, fields: dict[str, Any], param: str
):
    async def script(_request):
        yield tokens(0, 0, [100])
        await asyncio.sleep(0.02)
        problem = "the grammar cannot be followed any further: too many states"
        yield finished(0, 1, FinishReason.ERROR, error_message=problem, error_param="grammar")

    gateway.engine.script = script
    message = f"{param}: the grammar cannot be followed any further: too many states"
    body = {"model": MODEL_NAME, **fields}
    whole = await gateway.http.post(f"/v1/{route}", json=body)
    assert whole.status_code == 400, whole.text
    error = whole.json()["error"]
    assert (error["type"], error["message"]) == ("invalid_request_error", message)
    streamed = await gateway.http.post(f"/v1/{route}", json=body | {"stream": True})
    assert streamed.status_code == 200
    data = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    told = next(event for event in data if "error" in event or event.get("type") == "error")
    if route == "responses":
        assert (told["code"], told["message"], told["param"]) == ("invalid_value", message, param)
        assert data[-1]["response"]["error"] == {"code": "invalid_value", "message": message}
    else:
        # Anthropic's errors have no param.
        assert told["error"] == error
        assert route == "messages" or (error["param"], error["code"]) == (param, "invalid_value")


async def test_a_fault_of_another_field_has_its_own_name(gateway: GatewayServer):
    async def script(_request):
        yield finished(0, 0, FinishReason.ERROR, error_message="nothing is left", error_param="allowed_token_ids")

    gateway.engine.script = script
    response = await gateway.complete(allowed_token_ids=[100])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "allowed_token_ids")


async def test_nothing_is_served_without_an_engine(served_model: ServedModel):
    engine = ScriptedEngine()
    async with gateway_server(served_model, engine, wait_ready=False, scheduler_address="127.0.0.1:9") as gateway:
        await asyncio.sleep(0.1)
        for response in (await gateway.http.get("/ready"), await gateway.complete(), await gateway.chat(stream=True)):
            assert response.status_code == 503
            assert "cannot be reached" in response.json()["error"]["message"]
            assert response.elapsed.total_seconds() < 0.5
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.http.get("/v1/models")).json()["data"][0]["max_model_len"] is None
        assert (await gateway.http.post("/tokenize", json={"prompt": "x"})).json()["max_model_len"] is None


async def test_a_worker_that_comes_and_goes(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    model, gateway.engine.model = gateway.engine.model, None
    await gateway.engine.set_serving(False)
    await until_status(gateway.http, 503)
    refused = await gateway.complete()
    assert (refused.status_code, "no worker" in refused.text) == (503, True)
    gateway.engine.model = model
    await gateway.engine.set_serving(True)
    await until_ready(gateway.http)
    assert (await gateway.complete()).status_code == 200


async def test_a_draining_scheduler(gateway: GatewayServer):
    gateway.engine.draining = True
    await gateway.engine.set_serving(False)
    await until_status(gateway.http, 503)
    assert "shutting down" in (await gateway.http.get("/ready")).text


async def test_a_scheduler_that_restarts(served_model: ServedModel):
    first = ScriptedEngine()
    async with gateway_server(served_model, first) as gateway:

        async def hang(_request):
            yield tokens(0, 0, [100])
            await asyncio.sleep(60)

        first.script = hang
        running = asyncio.create_task(gateway.complete(stream=True))
        await first.until(lambda: len(first.requests) == 1)
        await asyncio.sleep(0.05)
        await first.__aexit__(None, None, None)
        assert "server_error" in (await running).text
        await until_status(gateway.http, 503)
        async with ScriptedEngine(port=first.port) as second:
            second.script = says(gateway.encode("back"))
            await until_ready(gateway.http)
            assert (await gateway.complete()).json()["choices"][0]["text"] == "back"


async def until_status(http: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(5):
        while (await http.get("/ready")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
