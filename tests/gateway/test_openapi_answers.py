"""What /openapi.json says of answers: each that the server gives fits the schema of its route and media type."""

import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from gateway.served_model import ServedModel
from pageloom.outputs import FinishReason
from pageloom.parsing.reasoning import THINK
from tests.gateway.test_tools import CALL, CALL_NOW, NOW, WEATHER, custom, ends
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server
from tests.support.scripted_engine import says

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "Hi"}
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
RUN = '<tool_call>\n{"name": "run", "arguments": {"input": "ls\\n"}}\n</tool_call>'
THOUGHT = f"<think>Hm.</think>I look. {CALL}\n{CALL_NOW}\n{RUN}"
FLAT: Any = [{"type": "function", **NOW["function"]}, {"type": "function", **WEATHER["function"]}]
# Route and body.
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER]}),
    (CHAT, {"messages": [USER], "tools": [WEATHER, NOW, custom("run")], "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": [USER], "return_token_ids": True, "include_timeline": True, "n": 2}),
    (TEXT, {"prompt": "x", "logprobs": 2, "return_token_ids": True}),
    (RESPONSES, {"input": "x"}),
    (
        RESPONSES,
        {
            "input": "x",
            "tools": [*FLAT, {"type": "custom", "name": "run"}],
            "top_logprobs": 1,
            "include": ["message.output_text.logprobs"],
        },
    ),
    (MESSAGES, {"messages": [USER], "max_tokens": 50}),
    (MESSAGES, {"messages": [USER], "max_tokens": 50, "tools": [{"name": "now"}, {"name": "weather"}]}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinking(served_model: ServedModel) -> AsyncGenerator[GatewayServer]:
    async with gateway_server(replace(served_model, reasoning_format=THINK)) as running:
        yield running


async def document_of(gateway: GatewayServer) -> dict[str, Any]:
    document: dict[str, Any] = (await gateway.http.get("/openapi.json")).json()
    return document


def check(document: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
    assert problem is None, (problem.message, list(problem.absolute_path), value)


@pytest.mark.parametrize(("path", "fields"), ASKED)
async def test_whole_answers(thinking: GatewayServer, path: str, fields: dict[str, Any]):
    document = await document_of(thinking)
    schema = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    for text in (THOUGHT, "Hello.", CALL[:-20]):
        thinking.engine.script = ends(thinking, text)
        answer = await thinking.http.post(path, json={"model": MODEL_NAME, **fields})
        assert answer.status_code == 200, answer.text
        check(document, schema, answer.json())


@pytest.mark.parametrize(("path", "fields"), ASKED)
async def test_streamed_answers(thinking: GatewayServer, path: str, fields: dict[str, Any]):
    document = await document_of(thinking)
    event = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    data = event["properties"]["data"]
    schema = next(member for member in data.get("anyOf", [data]) if "contentSchema" in member)["contentSchema"]
    options = {"stream_options": {"include_usage": True}} if path in (CHAT, TEXT) else {}
    fails = says(thinking.encode("Hello there"), reason=FinishReason.ERROR)
    for script in (ends(thinking, THOUGHT), says(thinking.encode("Hello")), fails):
        thinking.engine.script = script
        answer = await thinking.http.post(path, json={"model": MODEL_NAME, **fields, **options, "stream": True})
        kinds = set()
        for told in events(answer.text):
            check(document, schema, told)
            kinds.add(told.get("type"))
        assert len(kinds) >= 4 or path in (CHAT, TEXT)


async def test_stored_responses(gateway: GatewayServer):
    document = await document_of(gateway)
    gateway.engine.script = says(gateway.encode("Hello"))
    made = (await gateway.http.post(RESPONSES, json={"model": MODEL_NAME, "input": "x"})).json()
    path = "/v1/responses/{response_id}"
    for method, route in (("get", path), ("get", f"{path}/input_items"), ("delete", path)):
        answer = await gateway.http.request(method, route.format(response_id=made["id"]))
        described = document["paths"][route][method]["responses"]["200"]["content"]["application/json"]["schema"]
        check(document, described, answer.json())


async def test_counted_tokens(gateway: GatewayServer):
    document = await document_of(gateway)
    answer = await gateway.http.post(f"{MESSAGES}/count_tokens", json={"model": MODEL_NAME, "messages": [USER]})
    described = document["paths"][f"{MESSAGES}/count_tokens"]["post"]["responses"]["200"]["content"]
    check(document, described["application/json"]["schema"], answer.json())


async def test_no_definition_is_missing(gateway: GatewayServer):
    document = await document_of(gateway)
    names = set(document["components"]["schemas"])
    assert {reference.rpartition("/")[2] for reference in references(document)} <= names
    assert "$defs" not in json.dumps(document["paths"])


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def events(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
