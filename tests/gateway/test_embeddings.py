"""/v1/embeddings at the gateway's door: forms of input and answer, limits, and what the engine is asked."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from pageloom.outputs import FinishReason, GenerateEvent
from pageloom.policies import Pooling
from pageloom.requests import GenerateRequest
from tests.gateway.test_batches import begin, content, end
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, finished

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def pools(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
    """Of each prompt (its tokens, the first, 0, 4), so that the answer tells whose it is."""
    assert request.pooling is not None
    vector = struct.pack("<4f", len(request.prompt_token_ids), request.prompt_token_ids[0], 0, 4)
    yield finished(0, 0, FinishReason.STOP, embedding=vector)


@pytest.fixture
def server(gateway: GatewayServer) -> GatewayServer:
    gateway.engine.script = pools
    gateway.engine.model = MODEL
    return gateway


def unit(*values: float) -> list[float]:
    length = math.hypot(*values)
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *[v / length for v in values])))


async def post(server: GatewayServer, **fields: object) -> httpx.Response:
    return await server.http.post("/v1/embeddings", json={"model": MODEL_NAME, "input": [5, 6], **fields})


async def refused(server: GatewayServer, **fields: object) -> tuple[str, str]:
    answer = await post(server, **fields)
    assert answer.status_code == 400, answer.text
    assert server.engine.requests == []
    error = answer.json()["error"]
    return error["param"], error["message"]


class TestForms:
    async def test_the_answer(self, server: GatewayServer):
        body = (await post(server, input=[[5, 6], [7, 8, 9]], user="me")).json()
        assert body["id"].startswith("embd-")
        assert (body["object"], body["model"]) == ("list", MODEL_NAME)
        assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        assert body["data"] == [
            {"object": "embedding", "index": 0, "embedding": unit(2, 5, 0, 4)},
            {"object": "embedding", "index": 1, "embedding": unit(3, 7, 0, 4)},
        ]

    async def test_inputs(self, server: GatewayServer):
        hi, you = server.encode("Hi there"), server.encode("You")
        for given, prompts in (
            ("Hi there", [hi]),
            (["Hi there", "You"], [hi, you]),
            (hi, [hi]),
            ([hi, you], [hi, you]),
        ):
            server.engine.requests.clear()
            assert (await post(server, input=given)).status_code == 200
            asked = sorted(server.engine.requests, key=lambda request: request.request_id)
            assert [list(request.prompt_token_ids) for request in asked] == prompts

    async def test_the_official_client_in_both_formats(self, server: GatewayServer):
        """It asks for base64 unless told otherwise, and decodes it."""
        fields = {"model": MODEL_NAME, "input": ["one", "another one"]}
        default = await server.openai.embeddings.create(**fields)  # type: ignore[arg-type]
        floats = await server.openai.embeddings.create(**fields, encoding_format="float")  # type: ignore[arg-type]
        assert [entry.embedding for entry in default.data] == [entry.embedding for entry in floats.data]
        assert [entry.index for entry in default.data] == [0, 1]
        for entry in floats.data:
            assert math.hypot(*entry.embedding) == pytest.approx(1, abs=1e-6)

    async def test_base64_is_the_same_numbers(self, server: GatewayServer):
        (entry,) = (await post(server, encoding_format="base64")).json()["data"]
        assert list(struct.unpack("<4f", base64.b64decode(entry["embedding"]))) == unit(2, 5, 0, 4)

    async def test_fewer_dimensions_have_unit_length_again(self, server: GatewayServer):
        answer = await server.openai.embeddings.create(model=MODEL_NAME, input=[5, 6], dimensions=2)
        assert answer.data[0].embedding == unit(2, 5)
        (entry,) = (await post(server, dimensions=4)).json()["data"]
        assert entry["embedding"] == unit(2, 5, 0, 4)

    async def test_as_the_model_gives_it(self, server: GatewayServer):
        (entry,) = (await post(server, normalize=False, dimensions=3)).json()["data"]
        assert entry["embedding"] == [2, 5, 0]

    async def test_the_zero_vector_has_no_direction(self, server: GatewayServer):
        async def script(_request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            yield finished(0, 0, FinishReason.STOP, embedding=bytes(16))

        server.engine.script = script
        assert (await post(server)).json()["data"][0]["embedding"] == [0, 0, 0, 0]


class TestWhatIsAsked:
    async def test_the_request(self, server: GatewayServer):
        fields = {"priority": 3, "cache_salt": "pepper"}
        headers = {"x-tenant-id": "acme", "x-request-timeout-s": "60"}
        body = {"model": "alias", "input": [5, 6], **fields}
        answer = await server.http.post("/v1/embeddings", json=body, headers=headers)
        (request,) = server.engine.requests
        assert request.request_id == f"{answer.json()['id']}-0"
        assert (request.pooling, request.n) == (Pooling.last, 1)
        assert (request.priority, request.cache_salt, request.tenant) == (3, "pepper", "acme")
        assert request.deadline_s is not None
        assert 55 < request.deadline_s <= 60

    async def test_conversations(self, server: GatewayServer):
        tokenizer = server.model.tokenizer
        said = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Hello"}]
        for fields, rendered in (
            ({}, "Hello<|im_end|>\n"),
            ({"add_generation_prompt": True}, "Hello<|im_end|>\n<|im_start|>assistant\n"),
            ({"continue_final_message": True}, "Hello"),
            ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "Hello<|im_end|>\n"),
        ):
            server.engine.requests.clear()
            answer = await post(server, input=None, messages=said, **fields)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["data"]) == 1
            (asked,) = server.engine.requests
            text = tokenizer.decode(asked.prompt_token_ids, skip_special_tokens=False)
            assert text.endswith(rendered)
            if "truncate_prompt_tokens" in fields:
                assert len(asked.prompt_token_ids) == 3
            else:
                assert text.startswith("<|im_start|>system")
                ends = [id for id in asked.prompt_token_ids if id == tokenizer.special_ids_by_text["<|im_end|>"]]
                assert len(ends) == text.count("<|im_end|>") - 1, "what the client wrote stays text"

    async def test_more_inputs_than_prompts_at_a_time(self, server: GatewayServer):
        at_once = most = 0

        async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1
            async for event in pools(request):
                yield event

        server.engine.script = script
        body = (await post(server, input=[[token_id] for token_id in range(10, 610)])).json()
        assert [entry["embedding"] for entry in body["data"]] == [
            unit(1, token_id, 0, 4) for token_id in range(10, 610)
        ]
        assert most <= 256

    async def test_truncation(self, server: GatewayServer):
        long = list(range(10, 10 + MODEL.max_model_len + 30))
        assert (await post(server, input=long, truncate_prompt_tokens=-1)).status_code == 200
        assert (await post(server, input=long, truncate_prompt_tokens=7)).status_code == 200
        assert [len(request.prompt_token_ids) for request in server.engine.requests] == [MODEL.max_model_len, 7]
        assert server.engine.requests[1].prompt_token_ids == tuple(long[:7])
        assert (await post(server, input=long, truncate_prompt_tokens=7, truncation_side="left")).status_code == 200
        assert server.engine.requests[2].prompt_token_ids == tuple(long[-7:])

    async def test_a_whole_context(self, server: GatewayServer):
        assert (await post(server, input=[5] * MODEL.max_model_len)).status_code == 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "message"),
        [
            ({"input": []}, "input", "input"),
            ({"input": ""}, "input", "makes no tokens"),
            ({"input": ["one", ""]}, "input[1]", "makes no tokens"),
            ({"input": None}, "input", "give either input or messages"),
            ({"messages": [{"role": "user", "content": "x"}]}, "input", "give either input or messages"),
            ({"input": None, "messages": [{"role": "user", "content": "x " * 600}]}, "messages", "messages has"),
            ({"input": 5}, "input", "a string, a list of strings, a list of token ids"),
            ({"input": {"text": "x"}}, "input", "a string, a list of strings, a list of token ids"),
            ({"input": ["x"] * 2049}, "input", "2049 inputs; at most 2048"),
            ({"input": [5, 49152]}, "input", "49152"),
            ({"input": [[5], [-1]]}, "input[1]", "-1"),
            ({"input": [5] * 513}, "input", "maximum context length is 512 tokens. However, input has 513"),
            ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
            ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
            ({"dimensions": 5}, "dimensions", "dimensions is 5, but the model's embeddings have 4"),
            ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "between 1 and 512, not 0"),
            ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens", "between 1 and 512, not 513"),
            ({"embed_dtype": "float16"}, "embed_dtype", "must be float32"),
        ],
    )
    async def test_by_field(self, server: GatewayServer, fields: dict[str, object], param: str, message: str):
        found = await refused(server, **fields)
        assert found[0] == param
        assert message in found[1]

    async def test_another_model(self, server: GatewayServer):
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await server.openai.embeddings.create(model="text-embedding-3-small", input="x")

    async def test_the_engine_fails_one_of_several(self, server: GatewayServer):
        async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            if request.prompt_token_ids == (7,):
                yield finished(0, 0, FinishReason.ERROR, error_message="not a number")
                return
            await asyncio.sleep(5)
            yield finished(0, 0, FinishReason.STOP, embedding=bytes(16))

        server.engine.script = script
        answer = await post(server, input=[[5], [6], [7]])
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "not a number")
        await server.engine.until(lambda: len(server.engine.closed) == 2)

    async def test_the_client_leaves(self, server: GatewayServer):
        async def script(_request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            await asyncio.sleep(5)
            yield finished(0, 0, FinishReason.STOP, embedding=bytes(16))

        server.engine.script = script
        with pytest.raises(httpx.ReadTimeout):
            await server.http.post("/v1/embeddings", json={"model": MODEL_NAME, "input": [[5], [6]]}, timeout=0.3)
        await server.engine.until(lambda: len(server.engine.closed) == 2)


async def test_in_a_batch(server: GatewayServer):
    body = {"model": MODEL_NAME, "input": [5, 6]}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": body}
    batch = await end(server, (await begin(server, asked, endpoint="/v1/embeddings")).id)
    (answer,) = await content(server, batch.output_file_id)
    assert answer["response"]["body"]["data"][0]["embedding"] == unit(2, 5, 0, 4)


async def test_metrics(server: GatewayServer):
    def count(name: str, text: str) -> float:
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    names = ('pageloom_request_success_total{finished_reason="stop"', "pageloom_prompt_tokens_total")
    before = (await server.http.get("/metrics")).text
    await post(server, input=[[5, 6], [7, 8, 9]])
    after = (await server.http.get("/metrics")).text
    assert [count(name, after) - count(name, before) for name in names] == [2, 5]


async def test_the_documentation_lists_it(server: GatewayServer):
    described = (await server.http.get("/openapi.json")).json()
    answer = described["paths"]["/v1/embeddings"]["post"]["responses"]["200"]
    assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/EmbeddingResponse")
