"""Files and batches, through the official client and a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.batches.directory import BatchDirectory
from gateway.served_model import ServedModel
from pageloom.errors import Overloaded, StartupError
from pageloom.outputs import FinishReason, GenerateEvent
from pageloom.requests import GenerateRequest
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server
from tests.support.scripted_engine import ScriptedEngine, finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = COMPLETIONS, **body: object) -> dict[str, object]:
    what = {"prompt": "Hi"} if url == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi"}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL_NAME, **what, **body}}


def jsonl(*lines: object) -> bytes:
    return "\n".join(text if isinstance(text, str) else json.dumps(text) for text in lines).encode()


async def begin(gateway: GatewayServer, *lines: object, endpoint: str = COMPLETIONS, window: str = "24h") -> Any:
    file = await gateway.openai.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
    return await gateway.openai.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window  # type: ignore[arg-type]
    )  # fmt: skip


async def end(gateway: GatewayServer, batch_id: str, timeout_s: float = 10.0) -> Any:
    async with asyncio.timeout(timeout_s):
        while True:
            batch = await gateway.openai.batches.retrieve(batch_id)
            if batch.status in ENDED:
                return batch
            await asyncio.sleep(0.02)


async def content(gateway: GatewayServer, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await gateway.openai.files.content(file_id)).text
    assert text.endswith("\n")
    return [json.loads(answer) for answer in text.splitlines()]


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


async def test_each_line_is_answered_as_the_same_request(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Bonjour 😀"), num_cached_tokens=3)
    asked = [line("a", CHAT), line("b", CHAT, n=2, logprobs=True, top_logprobs=1), line("c", CHAT, temperature=-1)]
    batch = await end(gateway, (await begin(gateway, *asked, endpoint=CHAT)).id)
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    prompt_len = len(gateway.engine.requests[0].prompt_token_ids)
    assert batch.usage.input_tokens == 2 * prompt_len
    assert batch.usage.input_tokens_details.cached_tokens == 6
    assert batch.usage.output_tokens == 3 * len(gateway.encode("Bonjour 😀"))
    answers = {answer["custom_id"]: answer for answer in await content(gateway, batch.output_file_id)}
    (failed,) = await content(gateway, batch.error_file_id)
    assert sorted(answers) == ["a", "b"]
    for request in asked:
        direct = await gateway.http.post(CHAT, json=request["body"])
        answer = answers.get(str(request["custom_id"]), failed)
        assert answer["error"] is None
        assert answer["response"]["status_code"] == direct.status_code
        assert answer["response"]["request_id"]
        assert comparable(answer["response"]["body"]) == comparable(direct.json())
    assert failed["custom_id"] == "c"
    assert failed["response"]["body"]["error"]["param"] == "temperature"


async def test_every_url_of_the_gateway_can_be_asked(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one"))
    request = {**line("r"), "url": "/v1/responses", "body": {"model": MODEL_NAME, "input": "Hi"}}
    batch = await end(gateway, (await begin(gateway, request, endpoint="/v1/responses")).id)
    (answer,) = await content(gateway, batch.output_file_id)
    assert answer["response"]["body"]["output"][0]["content"][0]["text"] == "one"
    assert batch.usage.total_tokens == answer["response"]["body"]["usage"]["total_tokens"] > 0
    assert gateway.engine.requests[-1].priority == 1000


async def test_embeddings_in_a_batch(gateway: GatewayServer):
    async def script(_: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        yield finished(0, 0, FinishReason.STOP, embedding=struct.pack("<2f", 3, 4))

    gateway.engine.script = script
    request = {**line("e"), "url": "/v1/embeddings", "body": {"model": MODEL_NAME, "input": [5, 6]}}
    batch = await end(gateway, (await begin(gateway, request, endpoint="/v1/embeddings")).id)
    (answer,) = await content(gateway, batch.output_file_id)
    assert answer["response"]["body"]["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert (batch.usage.input_tokens, batch.usage.total_tokens) == (2, 2)


async def test_wrong_lines_do_not_stop_the_others(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one"))
    batch = await begin(
        gateway,
        "\ufeff" + json.dumps(line("first")),
        "{not json",
        "",
        '["a list"]',
        line("first"),
        line("u", url="/v1/nowhere"),
        line("other", url=CHAT),
        {**line("m"), "method": "GET"},
        line("s", stream=True),
        {**line("b"), "body": []},
        {**line("n"), "custom_id": 7},
        '{"custom_id": "nan", "method": "POST", "url": "/v1/completions", "body": {"temperature": NaN}}',
        "[" * 50_000,
        line("last"),
    )
    batch = await end(gateway, batch.id)
    assert batch.status == "completed"
    assert {answer["custom_id"] for answer in await content(gateway, batch.output_file_id)} == {"first", "last"}
    wrong = {answer["error"]["line"]: answer for answer in await content(gateway, batch.error_file_id)}
    assert {number: answer["error"]["code"] for number, answer in wrong.items()} == {
        2: "invalid_json",
        4: "invalid_line",
        5: "duplicate_custom_id",
        6: "invalid_url",
        7: "invalid_url",
        8: "invalid_method",
        9: "stream_not_supported",
        10: "invalid_body",
        11: "invalid_custom_id",
        12: "invalid_json",
        13: "invalid_json",
    }
    assert batch.request_counts.model_dump() == {"total": 13, "completed": 2, "failed": 11}
    assert [wrong[number]["custom_id"] for number in (2, 5, 8)] == [None, "first", "m"]
    assert wrong[5]["error"]["message"] == "line 5: custom_id 'first' is that of line 1 already"
    assert all(answer["response"] is None for answer in wrong.values())


async def test_lines_yield_to_clients_and_belong_to_the_tenant(served_model: ServedModel):
    async with gateway_server(served_model, batch_concurrency=2) as gateway:
        free = asyncio.Event()
        running = peak = 0

        async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await free.wait()
            yield tokens(0, 0, [100])
            yield finished(0, 1)
            running -= 1

        gateway.engine.script = script
        file = await gateway.openai.files.create(
            file=jsonl(*(line(str(number)) for number in range(4)), line("mine", priority=-5)), purpose="batch"
        )
        batch = await gateway.openai.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_headers={"x-tenant-id": "acme"},
        )
        await gateway.engine.until(lambda: len(gateway.engine.requests) == 2)
        await asyncio.sleep(0.1)
        assert len(gateway.engine.requests) == 2
        refused = await gateway.http.delete(f"/v1/files/{file.id}")
        assert refused.status_code == 400
        assert "has not ended" in refused.json()["error"]["message"]
        free.set()
        assert (await end(gateway, batch.id)).request_counts.completed == 5
        assert peak == 2
        assert {request.tenant for request in gateway.engine.requests} == {"acme"}
        assert sorted(request.priority for request in gateway.engine.requests) == [995, 1000, 1000, 1000, 1000]
        assert (await gateway.openai.files.delete(file.id)).deleted


async def test_a_full_queue_is_waited_for(gateway: GatewayServer):
    says_one = says(gateway.encode("one"))
    refusals = 3

    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise Overloaded("the queue is full")
        async for event in says_one(request):
            yield event

    gateway.engine.script = script
    batch = await end(gateway, (await begin(gateway, line("a"))).id)
    assert batch.request_counts.model_dump() == {"total": 1, "completed": 1, "failed": 0}
    assert refusals == 0


def first_only(gateway: GatewayServer) -> Any:
    """Answers the first request that comes, and no other."""
    answered = False
    says_one = says(gateway.encode("one"))

    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        nonlocal answered
        if answered:
            await asyncio.get_running_loop().create_future()
        answered = True
        async for event in says_one(request):
            yield event

    return script


async def until_counted(gateway: GatewayServer, batch_id: str, completed: int) -> None:
    async with asyncio.timeout(5):
        while True:
            batch = await gateway.http.get(f"/v1/batches/{batch_id}")
            if batch.json()["request_counts"]["completed"] == completed:
                return
            await asyncio.sleep(0.01)


async def test_cancel_keeps_what_is_done(gateway: GatewayServer):
    gateway.engine.script = first_only(gateway)
    batch = await begin(gateway, line("a"), line("b"), line("c"))
    await until_counted(gateway, batch.id, 1)
    assert (await gateway.openai.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    batch = await end(gateway, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    assert len(await content(gateway, batch.output_file_id)) == 1
    assert batch.error_file_id is None
    await gateway.engine.until(lambda: len(gateway.engine.closed) == 2)
    with pytest.raises(openai.BadRequestError, match="a batch that is cancelled cannot be cancelled"):
        await gateway.openai.batches.cancel(batch.id)


async def test_expired_lines_are_told(gateway: GatewayServer):
    gateway.engine.script = first_only(gateway)
    batch = await end(gateway, (await begin(gateway, line("a"), line("b"), "{", window="2s")).id)
    assert batch.status == "expired"
    assert len(await content(gateway, batch.output_file_id)) == 1
    errors = [answer["error"]["code"] for answer in await content(gateway, batch.error_file_id)]
    assert sorted(errors) == ["batch_expired", "invalid_json"]
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}


async def test_an_empty_file_fails(gateway: GatewayServer):
    batch = await end(gateway, (await begin(gateway, "", "  ")).id)
    assert batch.status == "failed"
    assert [error.code for error in batch.errors.data] == ["empty_file"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
    ],
)
async def test_a_wrong_field_is_named(gateway: GatewayServer, fields: dict[str, Any], param: str):
    file = await gateway.openai.files.create(file=jsonl(line("a")), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
    answer = await gateway.http.post("/v1/batches", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_what_is_not_there_is_not_found(gateway: GatewayServer):
    body = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}
    for answer in (
        await gateway.http.post("/v1/batches", json=body),
        await gateway.http.get("/v1/batches/batch_none"),
        await gateway.http.post("/v1/batches/batch_none/cancel"),
        await gateway.http.get("/v1/files/file-none"),
        await gateway.http.get("/v1/files/..%2Flock/content"),
        await gateway.http.delete("/v1/files/file-none"),
    ):
        assert answer.status_code == 404


async def test_lists_come_in_pages(served_model: ServedModel):
    async with gateway_server(served_model) as gateway:
        gateway.engine.script = says(gateway.encode("one"))
        batches = [await end(gateway, (await begin(gateway, line(str(number)))).id) for number in range(3)]
        ids = [batch.id for batch in reversed(batches)]
        assert [batch.id async for batch in gateway.openai.batches.list(limit=2)] == ids
        page = await gateway.openai.batches.list(limit=2)
        assert (page.has_more, [batch.id for batch in page.data]) == (True, ids[:2])
        inputs = [file.id async for file in gateway.openai.files.list(purpose="batch", order="asc", limit=1)]
        assert inputs == [batch.input_file_id for batch in batches]
        outputs = [file.id async for file in gateway.openai.files.list(purpose="batch_output")]
        assert sorted(outputs) == sorted(batch.output_file_id for batch in batches)
        assert (await gateway.http.get("/v1/files?after=file-none")).status_code == 400


async def test_a_file_comes_back_as_it_was_sent(gateway: GatewayServer):
    sent = bytes(range(256)) * 8192
    file = await gateway.openai.files.create(
        file=("päper.jsonl", sent), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.filename, file.purpose) == (len(sent), "päper.jsonl", "batch")
    assert file.expires_at == file.created_at + 3600
    assert await gateway.openai.files.retrieve(file.id) == file
    assert (await gateway.openai.files.content(file.id)).content == sent
    assert (await gateway.openai.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.files.content(file.id)


async def test_the_limits_of_the_store(served_model: ServedModel):
    limits: dict[str, Any] = {"max_file_bytes": 1000, "max_stored_files": 3, "max_stored_file_bytes": 2500}
    async with gateway_server(served_model, **limits) as gateway:

        async def upload_bytes(num_bytes: int) -> tuple[int, str]:
            answer = await upload(gateway, b"x" * num_bytes)
            return answer.status_code, answer.json().get("error", {}).get("message", "")

        assert await upload_bytes(1001) == (400, "the file is larger than 1000 bytes")
        assert await upload_bytes(100_000) == (413, "the file is larger than 1000 bytes")
        assert (await upload_bytes(999))[0] == (await upload_bytes(1000))[0] == 200
        status, message = await upload_bytes(502)
        assert status == 400
        assert "1999 bytes of files are stored, and 502 more would be over the limit of 2500" in message
        assert (await upload_bytes(500))[0] == 200
        assert await upload_bytes(1) == (400, "3 files are stored, which is the most; delete some")


async def test_answers_that_find_no_room_fail_the_batch(served_model: ServedModel):
    async with gateway_server(served_model, max_stored_file_bytes=1200) as gateway:
        gateway.engine.script = says(gateway.encode("one"))
        batch = await end(gateway, (await begin(gateway, line("a"), line("b"), line("c"))).id)
        assert batch.status == "failed"
        assert [error.code for error in batch.errors.data] == ["storage_full"]
        assert 0 < len(await content(gateway, batch.output_file_id)) < 3


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"json": {"purpose": "batch"}}, 415, "content-type must be multipart/form-data, not application/json"),
        ({"data": {"purpose": "batch"}}, 415, "multipart/form-data"),
        ({"files": {"file": ("x", b"")}}, 400, "purpose is required"),
        ({"files": {"other": ("x", b"")}, "data": {"purpose": "batch"}}, 400, "file is required"),
        ({"files": {"file": ("x", b"")}, "data": {"purpose": "vision"}}, 400, "purpose must be batch, not 'vision'"),
        ({"files": {"file": (None, b"x")}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": [("file", ("x", b"")), ("file", ("y", b""))], "data": {"purpose": "batch"}}, 400, "files"),
        ({"files": {"file": ("x", b"")}, "data": {"purpose": "batch", "x": "y" * 5000}}, 400, "4KB"),
        (
            {"files": {"file": ("x", b"")}, "data": {"purpose": "batch", "expires_after[seconds]": "60"}},
            400,
            "both anchor and seconds",
        ),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, ""),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data"}}, 400, ""),
    ],
)
async def test_a_bad_upload_is_refused(gateway: GatewayServer, request_: dict[str, Any], status: int, message: str):
    answer = await gateway.http.post("/v1/files", **request_)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


async def upload(gateway: GatewayServer, content: bytes = b"") -> httpx.Response:
    return await gateway.http.post("/v1/files", files={"file": ("x", content)}, data={"purpose": "batch"})


async def test_uploads_at_once_are_bounded(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.http.upload.MAX_UPLOADS", 1)
    reading, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        reading.set()
        await goes_on.wait()
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n--x--\r\n'

    headers = {"content-type": "multipart/form-data; boundary=x"}
    first = asyncio.create_task(gateway.http.post("/v1/files", content=slow(), headers=headers))
    await reading.wait()
    status = 0
    while status != 503:
        status = (await upload(gateway)).status_code
        await asyncio.sleep(0.01)
    assert (await gateway.http.get("/v1/files")).status_code == 200
    goes_on.set()
    assert (await first).json()["bytes"] == 3
    assert (await upload(gateway)).is_success


async def test_files_expire(served_model: ServedModel):
    async with gateway_server(served_model, file_ttl_s=1.0) as gateway:
        file = await gateway.openai.files.create(file=jsonl(line("a")), purpose="batch")
        await asyncio.sleep(1.1)
        assert (await gateway.http.get(f"/v1/files/{file.id}")).status_code == 404


async def test_a_batch_goes_on_after_a_crash(served_model: ServedModel, tmp_path: Path):
    lines = [*(line(str(number)) for number in range(5)), "{"]
    async with gateway_server(served_model, batch_dir=str(tmp_path / "first"), batch_concurrency=1) as gateway:
        gateway.engine.script = first_only(gateway)
        batch = await begin(gateway, *lines)
        await until_counted(gateway, batch.id, 1)
        # What a process that dies now leaves.
        shutil.copytree(tmp_path / "first", tmp_path / "crashed")
        with pytest.raises(StartupError, match="is used by another gateway"):
            BatchDirectory(str(tmp_path / "first"))
    (part,) = (path for path in (tmp_path / "crashed/files").glob("*.part") if path.stat().st_size)
    with part.open("ab") as file:
        file.write(b'{"id": "batch_req_torn_2", "custom')
    (tmp_path / "crashed/files/file-stray.part").write_bytes(b"x")
    # One that ended in good order goes on as well.
    for directory in ("crashed", "first"):
        engine = ScriptedEngine()
        engine.script = says(served_model.tokenizer.encode("two", add_special_tokens=False))
        async with gateway_server(served_model, engine, batch_dir=str(tmp_path / directory)) as gateway:
            ended = await end(gateway, batch.id)
            assert ended.status == "completed"
            assert ended.request_counts.model_dump() == {"total": 6, "completed": 5, "failed": 1}
            assert ended.usage.output_tokens == 5
            answers = await content(gateway, ended.output_file_id)
            texts = [answer["response"]["body"]["choices"][0]["text"] for answer in answers]
            assert texts == ["one", "two", "two", "two", "two"]
            assert sorted(answer["custom_id"] for answer in answers) == list("01234")
            assert len(engine.requests) == 4
        assert not list((tmp_path / directory).glob("files/*.part"))
    async with gateway_server(served_model, batch_dir=str(tmp_path / "crashed")) as gateway:
        assert (await gateway.openai.batches.retrieve(batch.id)).status == "completed"
        assert gateway.engine.requests == []


async def test_a_temporary_directory_goes_with_the_gateway(
    served_model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with gateway_server(served_model) as gateway:
        assert not os.listdir(tmp_path)
        await gateway.openai.files.create(file=jsonl(line("a")), purpose="batch")
        (name,) = os.listdir(tmp_path)
        assert os.stat(tmp_path / name).st_mode & 0o077 == 0
    assert not os.listdir(tmp_path)
