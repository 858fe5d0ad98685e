"""/openapi.json is what the server does, /docs shows it without a network, docs/compatibility.md lists every field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.anthropic.schemas import MessagesRequest
from gateway.batches.schemas import CreateBatchRequest
from gateway.http.openapi import RANGES
from gateway.openai.embedding_schemas import EmbeddingRequest
from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from gateway.requests.unserved_fields import (
    RENAMED_FIELDS,
    UNSERVED_FIELDS,
    UNSERVED_IN_MESSAGES,
    UNSERVED_IN_RESPONSES,
)
from gateway.responses.schemas import ResponseRequest
from gateway.routes.docs_page import _HEADERS
from gateway.served_model import ServedModel
from pageloom.request_limits import RequestLimits
from pageloom.request_model import RequestModel
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server
from tests.support.scripted_engine import says

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCS = Path(__file__).parents[2] / "docs"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# A hair beyond a bound, for integers and others.
BEYOND = {"minimum": (-1, -0.001), "maximum": (1, 0.001), "exclusiveMinimum": (0, 0)}


# Of the other APIs.
OTHER_REQUESTS: tuple[type[RequestModel], ...] = (
    ResponseRequest,
    MessagesRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    CreateBatchRequest,
)


def fields_of(model: type[RequestModel]) -> set[str]:
    """As requests call them."""
    return {field.alias or name for name, field in model.model_fields.items()}


async def document_of(gateway: GatewayServer) -> dict[str, Any]:
    document: dict[str, Any] = (await gateway.http.get("/openapi.json")).json()
    return document


async def test_every_route_tells_its_answers(gateway: GatewayServer):
    document = await document_of(gateway)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            assert {"200", "414", "431", "500"} <= set(answers), path
            if "requestBody" in operation:
                assert {"400", "404", "413", "415"} <= set(answers), path
            for status, answer in answers.items():
                if status >= "400":
                    schema = answer["content"]["application/json"]["schema"]
                    shape = "AnthropicErrorResponse" if path.startswith("/v1/messages") else "ErrorResponse"
                    assert schema["$ref"].endswith(f"/{shape}"), (path, status)
                    assert answer["description"]
    for path in (CHAT, TEXT):
        operation = document["paths"][path]["post"]
        assert {"409", "503", "504"} <= set(operation["responses"])
        assert "text/event-stream" in operation["responses"]["200"]["content"]
    assert "ValidationError" not in json.dumps(document), "nothing answers 422"


async def test_the_document_has_the_limits_of_this_server(served_model: ServedModel):
    limits = RequestLimits(
        max_messages=7, max_prompts=9, max_inputs=6, max_stop_chars=33, max_logit_bias=5, max_choices=3
    )
    async with gateway_server(served_model, limits=limits) as running:
        schemas = (await document_of(running))["components"]["schemas"]
    chat, text = schemas["ChatCompletionRequest"]["properties"], schemas["CompletionRequest"]["properties"]
    inputs = schemas["EmbeddingRequest"]["properties"]["input"]["anyOf"]
    assert [member.get("maxItems") for member in inputs] == [None, 6, None, 6, None]
    items = schemas["ResponseRequest"]["properties"]["input"]["anyOf"]
    assert [member.get("maxItems") for member in items if member["type"] == "array"] == [7]
    assert chat["messages"]["maxItems"] == 7
    assert [member.get("maxItems") for member in text["prompt"]["anyOf"]] == [None, 9, None, 9]
    assert '"maxLength": 33' in json.dumps(text["stop"]["anyOf"][0])
    assert text["stop"]["anyOf"][1]["items"]["maxLength"] == 33
    assert text["logit_bias"]["anyOf"][0]["maxProperties"] == 5
    assert text["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 3}


@pytest.mark.parametrize("field", RANGES)
async def test_ranges_are_what_is_checked(gateway: GatewayServer, field: str):
    gateway.engine.script = says(gateway.encode("x"))
    schemas = (await document_of(gateway))["components"]["schemas"]
    documented = schemas["ChatCompletionRequest"]["properties"][field]["anyOf"][0]
    for keyword, bound in RANGES[field].items():
        assert documented[keyword] == bound
        beyond = BEYOND[keyword][0 if documented["type"] == "integer" else 1]
        assert (await gateway.chat(**{field: bound + beyond})).status_code == 400
        if keyword != "exclusiveMinimum":
            assert (await gateway.chat(**{field: bound})).status_code == 200


async def test_required_fields_are_enough(gateway: GatewayServer):
    document = await document_of(gateway)
    for path in (CHAT, TEXT):
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        required = document["components"]["schemas"][reference.rsplit("/", 1)[1]]["required"]
        values = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
        gateway.engine.script = says(gateway.encode("x"))
        answer = await gateway.http.post(path, json={name: values[name] for name in required})
        assert answer.status_code == 200


async def test_the_page_needs_nothing_from_elsewhere(gateway: GatewayServer):
    answer = await gateway.http.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == _HEADERS["content-security-policy"]
    assert "default-src 'none'; connect-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r"https?://|//[a-z]+\.|<link|<script src|innerHTML", answer.text)
    asked = re.findall(r'fetch\("([^"]+)"\)', answer.text)
    assert asked == ["openapi.json", "v1/models"]
    for path in asked:
        assert (await gateway.http.get("/" + path)).status_code == 200
    assert "/docs" not in (await document_of(gateway))["paths"]


async def test_every_field_is_in_the_compatibility_table(gateway: GatewayServer):
    text = (DOCS / "compatibility.md").read_text()
    known = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *UNSERVED_FIELDS, *RENAMED_FIELDS}
    known |= {name for model in OTHER_REQUESTS for name in fields_of(model)}
    known |= {*UNSERVED_IN_RESPONSES, *UNSERVED_IN_MESSAGES, "file", "purpose", "expires_after"}
    assert not {name for name in known if f"`{name}`" not in text}


async def test_every_route_is_in_the_compatibility_table(gateway: GatewayServer):
    text = (DOCS / "compatibility.md").read_text()
    paths = [re.sub(r"\{\w+\}", "{id}", path) for path in (await document_of(gateway))["paths"]]
    assert not [path for path in paths if f"`{path}`" not in text]


async def test_web_pages_of_allowed_origins(served_model: ServedModel):
    origin = {"origin": "https://app.example"}
    preflight = origin | {
        "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"
    }  # fmt: skip
    async with gateway_server(served_model, allowed_origins=("https://app.example",)) as running:
        asked = await running.http.options(CHAT, headers=preflight)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == origin["origin"]
        assert "authorization" in asked.headers["access-control-allow-headers"]
        running.engine.script = says(running.encode("x"))
        body = {"model": MODEL_NAME, "prompt": "x"}
        for fields, status in ({}, 200), ({"n": 0}, 400), ({"stream": True}, 200):
            answer = await running.http.post(TEXT, json=body | fields, headers=origin)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin["origin"])
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for path, headers, status in (
            (f"/v1/models?{'x' * 9000}", {}, 414),
            ("/v1/models", {f"x-{number}": "y" for number in range(101)}, 431),
        ):
            answer = await running.http.get(path, headers=origin | headers)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin["origin"])
            assert answer.headers["x-request-id"]
        foreign = await running.http.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in foreign.headers
        refused = await running.http.options(CHAT, headers=preflight | {"origin": "https://evil.example"})
        assert refused.status_code == 400


async def test_no_web_page_may_unless_allowed(gateway: GatewayServer):
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    assert (await gateway.http.options(CHAT, headers=headers)).status_code == 405
    answer = await gateway.http.get("/v1/models", headers=headers)
    assert "access-control-allow-origin" not in answer.headers
