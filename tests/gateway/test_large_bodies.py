"""Bodies of every legal size: nothing of them is read on the event loop, and twice as much takes twice the work."""

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from gateway.anthropic.conversion import to_chat
from gateway.anthropic.schemas import MessagesRequest
from gateway.http.json_body import MAX_INLINE_BYTES, _read_model
from gateway.openai.embedding_schemas import EmbeddingRequest
from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest
from gateway.requests.prompt_tokens import MAX_CUT_CHARS
from gateway.requests.terms import Terms
from gateway.requests.translate import translate_chat, translate_completion
from gateway.requests.translate_embeddings import translate_embeddings
from gateway.responses.conversion import items_of
from gateway.responses.schemas import ResponseRequest
from gateway.responses.translate import translate_response
from gateway.served_model import ServedModel
from pageloom.errors import ContextLengthExceeded
from pageloom.request_limits import RequestLimits
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, says

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOMY = replace(MODEL, max_model_len=1_000_000)
USER = {"role": "user", "content": "x"}
PART = {"type": "text", "text": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}


def tool(index: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{index}", "description": "x"}}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "chat", {"messages": [USER], **fields}


def text(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "text", {"prompt": "x", **fields}


def turns(n: int) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return [{"role": "user", "content": "x"}, *[call] * n]


def anthropic(messages: list[dict[str, Any]], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "messages", {"max_tokens": 5, "messages": messages, **fields}


# Each list of each request, with so many items.
LISTS: dict[str, Callable[[int], tuple[str, dict[str, Any]]]] = {
    "messages": lambda n: chat(messages=[USER] * n),
    "system messages": lambda n: chat(messages=[{"role": "system", "content": "x"}] * n + [USER]),
    "results": lambda n: chat(messages=[USER, {"role": "assistant", "tool_calls": [CALL]}, *[RESULT] * n]),
    "parts": lambda n: chat(messages=[{"role": "user", "content": [PART] * n}]),
    "calls": lambda n: chat(messages=[USER, {"role": "assistant", "tool_calls": [CALL] * n}, USER]),
    "tools": lambda n: chat(tools=[tool(i) for i in range(n // 4)]),
    "forced tools": lambda n: chat(tools=[tool(i) for i in range(n // 4)], tool_choice="required"),
    "variables": lambda n: chat(chat_template_kwargs={f"v{i}": "x" for i in range(n // 2)}),
    "unknown fields": lambda n: chat(**{f"u{i}": "x" for i in range(n)}),
    "special tokens": lambda n: chat(messages=[{"role": "user", "content": "<|im_end|>" * n}]),
    "prompts": lambda n: text(prompt=["x"] * (n // 2)),
    "ids": lambda n: text(prompt=[5] * n),
    "lists of ids": lambda n: text(prompt=[[5]] * (n // 2)),
    "stop": lambda n: text(stop=["abc"] * (n // 32)),
    "stop_token_ids": lambda n: text(stop_token_ids=list(range(n // 4))),
    "logit_bias": lambda n: text(logit_bias={str(i): 1 for i in range(n)}),
    "bad_words": lambda n: text(bad_words=[f"bad{i}" for i in range(n // 4)]),
    "allowed_token_ids": lambda n: text(allowed_token_ids=list(range(n))),
    "inputs": lambda n: ("embeddings", {"input": ["x"] * n}),
    "input items": lambda n: ("responses", {"input": [USER] * n}),
    "input calls": lambda n: ("responses", {"input": turns(n)}),
    "include": lambda n: ("responses", {"input": "x", "include": ["web_search_call.results"] * n}),
    "anthropic messages": lambda n: anthropic([USER, {"role": "assistant", "content": "x"}] * (n // 2) + [USER]),
    "anthropic blocks": lambda n: anthropic([{"role": "user", "content": [PART] * n}]),
    "anthropic tools": lambda n: anthropic(
        [USER], tools=[{"name": f"f{i}", "input_schema": {}} for i in range(n // 4)]
    ),
}


@pytest.mark.parametrize("name", LISTS)
async def test_twice_as_much_takes_twice_the_work(served_model: ServedModel, name: str):
    counts = []
    for num_items in (256, 512):
        kind, fields = LISTS[name](num_items)
        body = json.dumps({"model": MODEL_NAME, **fields}).encode()
        prepare(served_model, kind, body)
        # The smaller of two, for objects of other tests may be cleared away meanwhile.
        counts.append(min(lines_run(partial(prepare, served_model, kind, body)) for _ in range(2)))
    assert counts[1] < 2.1 * counts[0], counts


def prepare(model: ServedModel, kind: str, body: bytes) -> None:
    """What is done for a request before the engine is asked."""
    limits, terms = RequestLimits(max_json_depth=64), Terms()
    if kind == "chat":
        translate_chat(read(body, ChatCompletionRequest, limits), terms, model, ROOMY)
    elif kind == "text":
        translate_completion(read(body, CompletionRequest, limits), terms, model, ROOMY)
    elif kind == "embeddings":
        translate_embeddings(read(body, EmbeddingRequest, limits), terms, model, ROOMY)
    elif kind == "responses":
        asked = read(body, ResponseRequest, limits)
        translate_response(items_of(asked), asked, terms, model, ROOMY)
    else:
        translate_chat(to_chat(read(body, MessagesRequest, limits)), terms, model, ROOMY)


def read(body: bytes, model: Any, limits: RequestLimits) -> Any:
    return _read_model(body, model, limits)


def lines_run(work: Callable[[], None]) -> int:
    count = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [PART] * 8000}]}),
    "metadata": ("/v1/chat/completions", {"messages": [USER], "metadata": {"k": ["x"] * 60_000}}),
    "items": ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 5000}]}),
    "blocks": ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [PART] * 8000}]}),
    "unknown": ("/v1/messages", {"max_tokens": 5, "messages": [USER], **{f"u{i}": "x" * 10 for i in range(8000)}}),
}


@pytest.mark.parametrize("name", LARGE)
async def test_large_bodies_are_read_beside_the_event_loop(gateway: GatewayServer, name: str):
    gateway.engine.script = says(gateway.encode("x"))
    path, fields = LARGE[name]
    body = json.dumps({"model": MODEL_NAME, **fields}).encode()
    assert len(body) > MAX_INLINE_BYTES
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called[frame.f_code.co_filename.partition("/gateway/")[2]] += 1

    assert threading.current_thread() is threading.main_thread()
    sys.setprofile(note)
    try:
        answer = await gateway.http.post(path, content=body, headers={"content-type": "application/json"})
    finally:
        sys.setprofile(None)
    # Some of them are more than the context holds, which shows late.
    assert answer.status_code in (200, 400), answer.text
    of_gateway = {file: count for file, count in called.items() if file.endswith(".py")}
    assert of_gateway["http/json_body.py"], "the event loop was watched"
    assert not {file for file, count in of_gateway.items() if count > 500}, of_gateway
    assert not of_gateway.keys() & {"requests/translate.py", "requests/prompt_tokens.py"}


async def test_only_so_much_of_a_text_is_tokenized_to_cut_it(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    for size, status in ((MAX_CUT_CHARS, 200), (MAX_CUT_CHARS + 1, 400)):
        answer = await gateway.complete(prompt="word " * (size // 5) + "x" * (size % 5), truncate_prompt_tokens=4)
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == "prompt"
    assert f"at most {MAX_CUT_CHARS} are tokenized" in answer.json()["error"]["message"]


async def test_long_texts_do_not_hold_up_short_ones(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    ended: list[str] = []

    async def ask(name: str, prompt: str) -> None:
        assert (await gateway.complete(prompt=prompt, truncate_prompt_tokens=4)).status_code == 200
        ended.append(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(ask("long", "word " * (MAX_CUT_CHARS // 5)))
        # Until they are with their threads.
        await asyncio.sleep(0.2)
        group.create_task(ask("short", "Hi"))
    assert ended.index("short") <= 1, "the first long one may have ended by then"


async def test_wrong_items_are_told_once(gateway: GatewayServer):
    wrong: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [{}] * 16_000}]},
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{}] * 16_000}]},
        {"messages": [{}] * 2000},
    ]
    for fields in wrong:
        answer = await gateway.chat(**fields)
        assert answer.status_code == 400
        assert len(answer.text) < 300


async def test_dropped_turns_are_found_in_few_tries(served_model: ServedModel):
    body = ResponseRequest(model=MODEL_NAME, input="x", truncation="auto")
    said = "word " * 40
    items = items_of(
        ResponseRequest.model_validate({"model": MODEL_NAME, "input": [{"role": "user", "content": said}] * 1000})
    )
    rendered = Counter[str]()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        rendered[frame.f_code.co_name] += event == "call"

    await asyncio.sleep(0)
    sys.setprofile(note)
    try:
        job = translate_response(items, body, Terms(), served_model, MODEL)
    finally:
        sys.setprofile(None)
    assert rendered["render_messages"] <= 12
    assert MODEL.max_model_len - 60 < len(job.prompts[0].token_ids) < MODEL.max_model_len
    with pytest.raises(ContextLengthExceeded):
        translate_response(items, body.model_copy(update={"truncation": "disabled"}), Terms(), served_model, MODEL)
