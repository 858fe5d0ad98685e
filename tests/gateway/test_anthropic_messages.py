"""Anthropic's Messages API, on a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pageloom.outputs import FinishReason
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.grammar_text import accepts
from tests.support.scripted_engine import EOS_TOKEN_ID, says

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "Hi"}


async def send(gateway: GatewayServer, status: int = 200, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL_NAME, "max_tokens": 50, "messages": [USER], **fields}
    response = await gateway.http.post("/v1/messages", json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events(gateway: GatewayServer, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL_NAME, "max_tokens": 50, "messages": [USER], "stream": True, **fields}
    response = await gateway.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.split("\n\n"):
        if block:
            kind, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert kind == f"event: {found[-1]['type']}"
    return found


def prompt_of(gateway: GatewayServer) -> str:
    token_ids = gateway.engine.requests[-1].prompt_token_ids
    return gateway.model.tokenizer.decode(token_ids, skip_special_tokens=False)


async def test_a_whole_message(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Bonjour"), num_cached_tokens=4)
    message = await send(gateway, system=[{"type": "text", "text": "Speak French."}], temperature=0.5, top_k=7)
    assert message["type"] == "message"
    assert message["role"] == "assistant"
    assert message["content"] == [{"type": "text", "text": "Bonjour"}]
    assert message["stop_reason"] == "max_tokens"
    request = gateway.engine.requests[0]
    assert message["usage"] == {
        "input_tokens": len(request.prompt_token_ids) - 4,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(gateway.encode("Bonjour")),
    }
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.max_tokens) == (0.5, 7, 50)
    assert "<|im_start|>system\nSpeak French.<|im_end|>" in prompt_of(gateway)


@pytest.mark.parametrize(
    ("script", "fields", "reason", "sequence"),
    [
        ({"reason": FinishReason.STOP, "stop_token_id": EOS_TOKEN_ID}, {}, "end_turn", None),
        ({}, {"stop_sequences": ["two"]}, "stop_sequence", "two"),
        ({}, {}, "max_tokens", None),
    ],
)
async def test_stop_reasons(gateway: GatewayServer, script, fields, reason, sequence):
    gateway.engine.script = says(gateway.encode("one two three"), **script)
    message = await send(gateway, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


async def test_events_add_up_to_the_message(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three"))
    told = await events(gateway)
    kinds = [event["type"] for event in told]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event["delta"]["text"] for event in told if event["type"] == "content_block_delta")
    whole = await send(gateway)
    assert [{"type": "text", "text": text}] == whole["content"]
    assert told[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    assert told[-2]["usage"] == whole["usage"]
    assert told[0]["message"]["content"] == []


async def test_a_final_message_of_the_assistant_is_continued(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode(" world"))
    await send(gateway, messages=[USER, {"role": "assistant", "content": "Hello"}])
    assert prompt_of(gateway).endswith("<|im_start|>assistant\nHello")


async def test_tool_use_and_results_become_messages(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("It rains."))
    await send(
        gateway,
        messages=[
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "drizzle"}]},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    )
    prompt = prompt_of(gateway)
    assert prompt.index("Let me see.") < prompt.index("drizzle") < prompt.index("And?")


async def test_a_call_is_a_block_of_its_own(gateway: GatewayServer):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    gateway.engine.script = says(gateway.encode("One moment. " + call), reason=FinishReason.STOP)
    tools = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    whole = await send(gateway, tools=tools, tool_choice={"type": "auto"})
    text, use = whole["content"]
    assert text == {"type": "text", "text": "One moment."}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Oslo"})
    assert whole["stop_reason"] == "tool_use"
    told = await events(gateway, tools=tools)
    pieces = [event["delta"] for event in told if event["type"] == "content_block_delta" and event["index"] == 1]
    assert {piece["type"] for piece in pieces} == {"input_json_delta"}
    assert json.loads("".join(piece["partial_json"] for piece in pieces)) == {"city": "Oslo"}


async def test_tokens_are_counted(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    await send(gateway, system="Be brief.")
    body = {"model": MODEL_NAME, "messages": [USER], "system": "Be brief."}
    counted = (await gateway.http.post("/v1/messages/count_tokens", json=body)).json()
    assert counted == {"input_tokens": len(gateway.engine.requests[0].prompt_token_ids)}


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"max_tokens": 0}, "invalid_request_error", "max_tokens must be at least 1"),
        ({"messages": [{"role": "system", "content": "x"}]}, "invalid_request_error", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "invalid_request_error",
            "messages[0].content[0] is of type 'image'",
        ),
        ({"model": "other"}, "not_found_error", "other"),
        ({"temperature": 1.5}, "invalid_request_error", "temperature"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "http://elsewhere/"}}}},
            "invalid_request_error",
            "output_config.format",
        ),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "invalid_request_error", "tools[0].type"),
        ({"tools": [{"name": "a b"}]}, "invalid_request_error", "tools[0].name: String should match"),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "array"}}], "tool_choice": {"type": "any"}},
            "invalid_request_error",
            "tools[0].input_schema must be the schema of an object",
        ),
        ({"tool_choice": {"type": "any"}}, "invalid_request_error", "there are no tools"),
        ({"mcp_servers": [{"url": "x"}]}, "invalid_request_error", "mcp_servers is not served"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "invalid_request_error",
            "messages[0].content[0].text is required",
        ),
    ],
)
async def test_errors_have_the_shape_that_anthropics_clients_read(gateway: GatewayServer, fields, kind, message):
    body = {"model": MODEL_NAME, "max_tokens": 5, "messages": [USER], **fields}
    response = await gateway.http.post("/v1/messages", json=body)
    assert response.status_code in (400, 404)
    answer = response.json()
    assert answer["type"] == "error"
    assert answer["error"]["type"] == kind
    assert message in answer["error"]["message"]


async def test_json_of_a_schema(gateway: GatewayServer):
    def output(schema: dict[str, Any]) -> dict[str, Any]:
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    gateway.engine.script = says(gateway.encode("12"), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    message = await send(gateway, **output({"type": "integer"}))
    assert message["content"] == [{"type": "text", "text": "12"}]
    assert accepts(gateway.engine.requests[0].sampling.grammar, "12")
    for schema, reason in (({"not": {}}, "the keyword 'not' is not supported"), ({"pattern": "(?=a)"}, "look-ahead")):
        refusal = await send(gateway, status=400, **output(schema))
        assert reason in refusal["error"]["message"]
    assert len(gateway.engine.requests) == 1
