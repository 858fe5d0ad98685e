"""A streamed answer says what the whole one says, for every pair of features, however the text is cut into tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from pageloom.outputs import FinishReason
from tests.support.gateway_server import GatewayServer
from tests.support.scripted_engine import EOS_TOKEN_ID, says

pytestmark = pytest.mark.asyncio(loop_scope="module")

# An emoji of several code points, a flag, combining marks, CJK: each is several tokens, which cut characters.
TEXT = "Hé 👩‍👩‍👧 🇳🇴 e\u0301\u0323 漢字かな STOP after"
CALL = '<tool_call>\n{"name": "find", "arguments": {"what": "漢 👍🏽"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
SHARED: dict[str, dict[str, Any]] = {
    "n": {"n": 3},
    "stop": {"stop": ["STOP", "nowhere"]},
    "stop included": {"stop": ["STOP"], "include_stop_str_in_output": True},
    "special tokens shown": {"skip_special_tokens": False},
    "token ids": {"return_token_ids": True},
    "tokens as ids": {"return_tokens_as_token_ids": True},
    "JSON": {"response_format": {"type": "json_object"}},
    "timeline": {"include_timeline": True},
}
CHAT = SHARED | {
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "tools": {"tools": [TOOL]},
    "a forced tool": {"tools": [TOOL], "tool_choice": "required"},
    "one call": {"tools": [TOOL], "parallel_tool_calls": False},
    "echo": {"echo": True},
}
COMPLETIONS = SHARED | {"logprobs": {"logprobs": 2}, "echo": {"echo": True}}


def pairs(features: dict[str, dict[str, Any]]) -> Iterator[Any]:
    for (one, these), (other, those) in combinations(features.items(), 2):
        if not these.keys() & those.keys():
            yield pytest.param({**these, **those}, id=f"{one}, {other}")


def texts(gateway: GatewayServer) -> list[list[int]]:
    """What the choices say: a text, a call after a text, and a text that ends in half a character."""
    emoji = gateway.encode("👍🏽")
    return [gateway.encode(TEXT), gateway.encode("So: " + CALL), [*gateway.encode("half "), *emoji[:-1]]]


async def both(gateway: GatewayServer, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    for part in ("whole", "streamed"):
        gateway.engine.script = says(*texts(gateway), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
        fields = {"stream": True, "stream_options": {"include_usage": True}} if part == "streamed" else {}
        response = await gateway.http.post(path, json={"model": "alias", **body, **fields})
        assert response.status_code == 200, response.text
        if part == "whole":
            whole = response.json()
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return whole, [json.loads(line) for line in data[:-1]]


def added(total: Any, part: Any) -> Any:
    """Lists and texts grow; of anything else the last one counts."""
    if total is None or not isinstance(part, str | list):
        return total if part is None else part
    return total + part


def joined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {})
            content = piece.pop("delta", None) or {}
            calls = content.pop("tool_calls", [])
            logprobs = piece.pop("logprobs", None) or {}
            for name, value in {**piece, **content}.items():
                choice[name] = value if name == "role" else added(choice.get(name), value)
            for name, value in logprobs.items():
                choice.setdefault("logprobs", {})[name] = added(choice.get("logprobs", {}).get(name), value)
            for call in calls:
                join_call(choice.setdefault("tool_calls", {}), call)
    return [choices[index] for index in sorted(choices)]


def join_call(calls: dict[int, dict[str, Any]], call: dict[str, Any]) -> None:
    known = calls.setdefault(call["index"], {"name": None, "arguments": ""})
    known["name"] = known["name"] or call["function"].get("name")
    known["arguments"] += call["function"]["arguments"]


def of_whole(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.pop("message", {})
    calls = message.pop("tool_calls", None) or []
    shown = {**choice, **message}
    if calls:
        shown["tool_calls"] = {
            index: {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            for index, call in enumerate(calls)
        }
    return shown


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    """Without what is nothing, and without an index, by which they are sorted."""
    return {name: value for name, value in choice.items() if value not in (None, "", [], {}) and name != "index"}


@pytest.mark.parametrize("fields", list(pairs(CHAT)))
async def test_chats(gateway: GatewayServer, fields: dict[str, Any]):
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    whole, chunks = await both(gateway, "/v1/chat/completions", body)
    check(whole, chunks)


@pytest.mark.parametrize("fields", list(pairs(COMPLETIONS)))
async def test_completions(gateway: GatewayServer, fields: dict[str, Any]):
    whole, chunks = await both(gateway, "/v1/completions", {"prompt": "Hi 👋 there", **fields})
    check(whole, chunks)


def check(whole: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    streamed = [comparable(choice) for choice in joined(chunks)]
    assert streamed == [comparable(of_whole(choice)) for choice in whole["choices"]]
    assert chunks[-1]["usage"] == whole["usage"]
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(ends) == len(whole["choices"])
