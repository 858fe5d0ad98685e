"""Whom a request is for and how long it may take, told by headers."""

import asyncio
import json
from typing import Any

import openai
import pytest

from pageloom.outputs import FinishReason
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = {"messages": [{"role": "user", "content": "x"}]}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"})]


async def ask(gateway: GatewayServer, path: str, body: dict[str, Any], **headers: str):
    return await gateway.http.post(
        path,
        json={"model": MODEL_NAME} | body,
        headers={name.replace("_", "-"): text for name, text in headers.items()},
    )


@pytest.mark.parametrize(("path", "body"), PATHS, ids=["chat", "completion"])
async def test_tenant_and_deadline_reach_the_engine(gateway: GatewayServer, path: str, body: dict[str, Any]):
    gateway.engine.script = says(gateway.encode("x"))
    await ask(gateway, path, body | {"user": "not a tenant"})
    await ask(gateway, path, body, x_tenant_id="acme / north", x_request_timeout_s="30")
    plain, asked = gateway.engine.requests
    assert (plain.tenant, plain.deadline_s) == ("", None)
    assert asked.tenant == "acme / north"
    # What the gateway has used up is no more to be had.
    assert asked.deadline_s is not None
    assert 29 < asked.deadline_s < 30


@pytest.mark.parametrize(("path", "body"), PATHS, ids=["chat", "completion"])
@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-tenant-id", "t" * 257),
        ("x-tenant-id", "caf\xe9"),
        ("x-tenant-id", "a\tb"),
        ("x-request-timeout-s", "0"),
        ("x-request-timeout-s", "-1"),
        ("x-request-timeout-s", "nan"),
        ("x-request-timeout-s", "inf"),
        ("x-request-timeout-s", "1e9"),
        ("x-request-timeout-s", "soon"),
        ("x-request-timeout-s", ""),
    ],
)
async def test_headers_that_make_no_sense(gateway: GatewayServer, path: str, body: Any, header: str, value: str):
    response = await gateway.http.post(
        path, json={"model": MODEL_NAME} | body, headers=[(header.encode(), value.encode("latin-1"))]
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, header)
    assert header in response.json()["error"]["message"]
    assert gateway.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_before_the_first_token_is_a_504(gateway: GatewayServer, stream: bool):
    async def script(_request):
        yield finished(0, 0, FinishReason.DEADLINE, error_message="it waited for 1 s")

    gateway.engine.script = script
    response = await ask(gateway, "/v1/completions", {"prompt": "x", "stream": stream}, x_request_timeout_s="1")
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"] == {
        "message": "it waited for 1 s", "type": "server_error", "param": None, "code": "deadline_exceeded"
    }  # fmt: skip


async def test_the_official_client_does_not_retry_what_came_too_late(gateway: GatewayServer):
    async def script(_request):
        yield finished(0, 0, FinishReason.DEADLINE)

    gateway.engine.script = script
    with pytest.raises(openai.APIStatusError) as caught:
        await gateway.openai.with_options(max_retries=2).completions.create(
            model=MODEL_NAME, prompt="x", extra_headers={"x-request-timeout-s": "1"}
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(gateway.engine.requests) == 1


async def test_a_deadline_in_mid_stream_is_one_event(gateway: GatewayServer):
    async def script(_request):
        yield tokens(0, 0, [100])
        await asyncio.sleep(0.02)
        yield finished(0, 1, FinishReason.DEADLINE)

    gateway.engine.script = script
    response = await ask(gateway, "/v1/completions", {"prompt": "x", "stream": True}, x_request_timeout_s="1")
    assert response.status_code == 200
    last = response.text.removesuffix("\n\n").rsplit("\n\n", 1)[1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert (await ask(gateway, "/v1/completions", {"prompt": "x"}, x_request_timeout_s="1")).status_code == 504


async def test_what_is_late_already_never_reaches_the_engine(gateway: GatewayServer):
    response = await ask(gateway, "/v1/completions", {"prompt": ["x", "y"]}, x_request_timeout_s="0.0000001")
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert gateway.engine.requests == []
