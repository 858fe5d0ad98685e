"""What does not fit a chat request is the other APIs' callers' error too, and named as they know it."""

from typing import Any

import pytest

from gateway.requests.unserved_fields import UNSERVED_IN_MESSAGES, UNSERVED_IN_RESPONSES
from tests.support.gateway_server import MODEL_NAME, GatewayServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": MODEL_NAME, "input": "x"},
    "/v1/messages": {"model": MODEL_NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": MODEL_NAME, "messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/v1/responses", {"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f"}], "tool_choice": "always"}, "tool_choice"),
        ("/v1/responses", {"reasoning": {"effort": "x" * 99}}, "reasoning.effort"),
        *(("/v1/responses", {name: "x"}, f"{name} is not served") for name in UNSERVED_IN_RESPONSES),
        ("/v1/responses", {"use_beam_search": True}, "use_beam_search is not served"),
        *(("/v1/messages", {name: "x"}, f"{name} is not served") for name in UNSERVED_IN_MESSAGES),
        ("/v1/messages", {"output_config": {"effort": "x" * 99}}, "output_config.effort"),
        ("/v1/messages", {"tools": [{"name": ""}]}, "tools[0].name"),
        ("/v1/messages", {"tools": [{"name": "f"}], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ("/v1/messages/count_tokens", {"tools": [{"name": "a b"}]}, "tools[0].name"),
    ],
)
async def test_it_is_a_400(gateway: GatewayServer, path: str, fields: dict[str, Any], words: str):
    answer = await gateway.http.post(path, json={**ASKED[path], **fields})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert gateway.engine.requests == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_limits_hold_there_too(gateway: GatewayServer, path: str):
    tool = {"type": "function", "name": "f"} if path == "/v1/responses" else {"name": "f"}
    listed = {"/v1/responses": "input", "/v1/messages": "messages"}[path]
    stops = {"/v1/responses": "stop", "/v1/messages": "stop_sequences"}[path]
    message = {"role": "user", "content": "x"}
    for fields, words in (
        ({"tools": [tool] * 129}, "tools has 129 tools; at most 128 are accepted"),
        ({listed: [message] * 2049}, f"{listed} has 2049"),
        ({stops: ["x"] * 17}, f"{stops} has 17 strings; at most 16 are accepted"),
        ({stops: ["x" * 257]}, f"{stops} has a string of 257 characters; at most 256 are accepted"),
    ):
        answer = await gateway.http.post(path, json={**ASKED[path], **fields})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
