"""Everything around generation: routes, errors of HTTP itself, limits, ids, metrics, the OpenAPI document."""

import asyncio
import json

import openai
import pytest

from gateway.openai.answer_schemas import ErrorResponse
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, VOCAB_SIZE, says

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("POST", "/tokenize/", 404, "unknown_url"),
        ("GET", "/redoc", 404, "unknown_url"),
        ("GET", "/v1/models/no/such", 404, "model_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("OPTIONS", "/ping", 405, "method_not_allowed"),
    ],
)
async def test_errors_of_routing(gateway: GatewayServer, method: str, path: str, status: int, code: str):
    response = await gateway.http.request(method, path)
    assert response.status_code == status
    ErrorResponse.model_validate(response.json())
    assert response.json()["error"]["code"] == code
    if status == 405:
        allowed = {"/ping": "GET, POST", "/v1/models": "GET", "/v1/chat/completions": "POST"}
        assert response.headers["allow"] == allowed[path]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_other_content_types(gateway: GatewayServer, kind: str | None):
    headers = {} if kind is None else {"content-type": kind}
    response = await gateway.http.post("/v1/completions", content=b"{}", headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


async def test_json_content_type_in_any_spelling(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    body = json.dumps({"model": MODEL_NAME, "prompt": "x"}).encode()
    headers = {"content-type": "Application/JSON; Charset=UTF-8"}
    assert (await gateway.http.post("/v1/completions", content=body, headers=headers)).status_code == 200
    compressed = await gateway.http.post("/v1/completions", content=body, headers=JSON | {"content-encoding": "gzip"})
    assert compressed.status_code == 415


async def test_body_limit(gateway: GatewayServer):
    limit = 4 * 1024 * 1024
    padding = b" " * limit

    async def chunks():
        for _ in range(9):
            yield padding[: limit // 8]

    for content in (padding + b" ", chunks()):
        response = await gateway.http.post("/v1/completions", content=content, headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
    assert (await gateway.http.post("/v1/completions", content=padding, headers=JSON)).status_code == 400


async def test_a_body_that_is_declared_far_too_large_is_not_read(gateway: GatewayServer):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n"
    )
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    assert (await reader.read()).endswith(b"}"), "the connection is closed"
    writer.close()
    await writer.wait_closed()


async def test_a_body_that_is_longer_than_declared_is_cut_off(gateway: GatewayServer):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()
    await writer.wait_closed()


async def test_limits_on_the_head(gateway: GatewayServer):
    too_long = await gateway.http.get("/health?" + "x" * 9000)
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (414, "uri_too_long")
    too_many = await gateway.http.get("/health", headers={f"x-{i}": "1" for i in range(101)})
    too_large = await gateway.http.get("/health", headers={"x-large": "x" * 70_000})
    for response in (too_many, too_large):
        assert (response.status_code, response.json()["error"]["code"]) == (431, "headers_too_large")


async def test_request_ids(gateway: GatewayServer):
    assert (await gateway.http.get("/health", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for given in ("", "x" * 200, "caf\u00e9"):
        response = await gateway.http.get("/nowhere", headers=[(b"x-request-id", given.encode())])
        assert len(response.headers["x-request-id"]) == 32


async def test_models(gateway: GatewayServer):
    listed = [model async for model in gateway.openai.models.list()]
    assert [model.id for model in listed] == [MODEL_NAME, "alias"]
    assert listed[0].object == "model"
    assert listed[0].model_extra is not None
    assert listed[0].model_extra["max_model_len"] == MODEL.max_model_len
    assert (await gateway.http.get(f"/v1/models/{MODEL_NAME}")).json()["id"] == MODEL_NAME
    gateway.engine.script = says(gateway.encode("x"))
    assert (await gateway.openai.completions.create(model="alias", prompt="x")).model == "alias"


async def test_tokenize_and_back(gateway: GatewayServer):
    text = "Hello 😀<|im_end|>"
    body = (await gateway.http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert body["tokens"] == gateway.encode(text)
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), MODEL.max_model_len)
    assert body["token_strs"][0] == "Hello"
    # As lm-eval asks, to find out whether there is a tokenizer.
    probe = await gateway.http.post("/tokenize", json={"prompt": "test", "add_special_tokens": False})
    assert probe.json()["tokens"] == gateway.encode("test")
    back = await gateway.http.post("/detokenize", json={"model": MODEL_NAME, "tokens": body["tokens"]})
    assert back.json() == {"prompt": text}


async def test_tokenize_messages_as_the_chat_does(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    await gateway.chat(messages=USER)
    body = (await gateway.http.post("/tokenize", json={"model": MODEL_NAME, "messages": USER})).json()
    assert tuple(body["tokens"]) == gateway.engine.requests[0].prompt_token_ids
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
    await gateway.chat(messages=USER, tools=tools)
    with_tools = (await gateway.http.post("/tokenize", json={"messages": USER, "tools": tools})).json()
    assert tuple(with_tools["tokens"]) == gateway.engine.requests[1].prompt_token_ids
    assert with_tools["count"] > body["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": USER}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
    ],
)
async def test_tokenize_refusals(gateway: GatewayServer, path: str, body: dict[str, object], status: int, param: str):
    response = await gateway.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_tokenizer_info(gateway: GatewayServer):
    info = (await gateway.http.get("/tokenizer_info")).json()
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert (info["vocab_size"], info["model_max_length"]) == (VOCAB_SIZE, MODEL.max_model_len)
    assert info["chat_template"] == gateway.model.tokenizer.chat_templates["default"]
    assert "pad_token" in info


async def test_models_by_the_client(gateway: GatewayServer):
    assert (await gateway.openai.models.retrieve(MODEL_NAME)).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.models.retrieve("no/such")


async def test_operators_routes(gateway: GatewayServer):
    for path in ("/health", "/ping", "/ready", "/version"):
        assert (await gateway.http.get(path)).status_code == 200
    assert (await gateway.http.post("/ping")).status_code == 200
    assert (await gateway.http.get("/load")).json() == {"server_load": 0}
    assert (await gateway.http.get("/version")).json() == {"version": "0.1.0"}


async def test_metrics(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three"))
    before = await scrape(gateway)
    await gateway.complete(prompt="Hi")
    await gateway.complete(temperature=-1)
    after = await scrape(gateway)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    model = f'model_name="{MODEL_NAME}"'
    assert gained(f"pageloom_prompt_tokens_total{{{model}}}") == 1
    assert gained(f"pageloom_generation_tokens_total{{{model}}}") == 3
    assert gained(f"pageloom_time_to_first_token_seconds_count{{{model}}}") == 1
    assert gained(f"pageloom_inter_token_latency_seconds_count{{{model}}}") == 2
    assert gained(f"pageloom_e2e_request_latency_seconds_count{{{model}}}") == 1
    assert gained(f'pageloom_request_success_total{{finished_reason="length",{model}}}') == 1
    for status in (200, 400):
        route = f'method="POST",route="/v1/completions",status="{status}"'
        assert gained(f"pageloom_http_requests_total{{{route}}}") == 1
    assert after[f"pageloom_num_generations_running{{{model}}}"] == 0
    assert any(name.startswith("pageloom_build_info") for name in after)
    assert any(name.startswith("process_resident_memory_bytes") for name in after)


async def test_unmatched_routes_share_one_series(gateway: GatewayServer):
    for path in ("/a", "/b", "/c/d"):
        await gateway.http.get(path)
    names = "".join(await scrape(gateway))
    assert 'pageloom_http_requests_total{method="GET",route="unmatched",status="404"}' in names
    assert '"/a"' not in names


async def scrape(gateway: GatewayServer) -> dict[str, float]:
    text = (await gateway.http.get("/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}
