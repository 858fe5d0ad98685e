"""The Responses API, through the official client and a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from gateway.answers.choice import ChoiceDelta
from gateway.responses.output_items import OutputItems
from gateway.served_model import ServedModel
from pageloom.outputs import FinishReason
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import EOS_TOKEN_ID, says

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(gateway: GatewayServer, **fields: Any) -> dict[str, Any]:
    response = await gateway.http.post("/v1/responses", json={"model": MODEL_NAME, "input": "Hi", **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events(gateway: GatewayServer, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL_NAME, "input": "Hi", "stream": True, **fields}
    response = await gateway.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    return parsed(response.text)


def parsed(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            kind, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert kind == f"event: {event['type']}"
            found.append(event)
    return found


def prompt_of(gateway: GatewayServer, index: int = -1) -> str:
    token_ids = gateway.engine.requests[index].prompt_token_ids
    return gateway.model.tokenizer.decode(token_ids, skip_special_tokens=False)


async def test_a_whole_answer(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Bonjour 😀"), num_cached_tokens=3)
    answer = await gateway.openai.responses.create(
        model=MODEL_NAME, input="Hello", instructions="Speak French.", max_output_tokens=40, metadata={"a": "b"}
    )
    assert answer.output_text == "Bonjour 😀"
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(gateway.engine.requests[0].prompt_token_ids)
    assert answer.usage.output_tokens == len(gateway.encode("Bonjour 😀"))
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.metadata == {"a": "b"}
    assert gateway.engine.requests[0].sampling.max_tokens == 40
    assert "<|im_start|>system\nSpeak French.<|im_end|>" in prompt_of(gateway)
    assert "<|im_start|>user\nHello<|im_end|>" in prompt_of(gateway)


async def test_events_are_numbered_and_add_up(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three"))
    told = await events(gateway)
    kinds = [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == "one two three"
    last = told[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == "one two three"
    assert last["output"][0]["status"] == "incomplete"
    assert told[0]["response"]["output"] == []
    assert len({event["item_id"] for event in told if "item_id" in event}) == 1


async def test_streamed_and_whole_answers_are_equal(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("The same."))
    streamed = (await events(gateway))[-1]["response"]
    whole = await post(gateway)
    for answer in (streamed, whole):
        for name in ("id", "created_at", "completed_at"):
            del answer[name]
        del answer["output"][0]["id"]
    assert streamed == whole


async def test_the_official_client_streams(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two"), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    async with gateway.openai.responses.stream(model=MODEL_NAME, input="Hi") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_text.delta") >= 1
    assert final.output_text == "one two"


async def test_a_conversation_goes_on(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Blue."))
    first = await post(gateway, input="My colour is blue.")
    await post(gateway, input="Which is my colour?", previous_response_id=first["id"])
    prompt = prompt_of(gateway)
    assert prompt.index("My colour is blue.") < prompt.index("Blue.<|im_end|>") < prompt.index("Which is my colour?")


async def test_items_of_every_kind_become_messages(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("ok"))
    await post(
        gateway,
        input=[
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        ],
    )
    prompt = prompt_of(gateway)
    assert prompt.index("Be brief.") < prompt.index("Weather?") < prompt.index("rain")


TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_a_call_is_an_item_of_its_own(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("One moment. " + CALL), reason=FinishReason.STOP)
    told = await events(gateway, tools=[TOOL, {"type": "web_search"}])
    message, call = told[-1]["response"]["output"]
    assert message["content"][0]["text"] == "One moment."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "Oslo"})
    pieces = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call["arguments"]
    assert told[-1]["type"] == "response.completed"
    assert "weather" in prompt_of(gateway)
    gateway.engine.script = says(gateway.encode("It is wet."))
    answered = {"type": "function_call_output", "call_id": call["call_id"], "output": "drizzle"}
    await post(gateway, input=[answered], previous_response_id=told[-1]["response"]["id"], tools=[TOOL])
    assert prompt_of(gateway).index("<tool_call>") < prompt_of(gateway).index("drizzle")


async def test_a_call_that_was_cut_off_is_left_out_of_the_next_turn(gateway: GatewayServer):
    whole = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    cut = '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"'
    gateway.engine.script = says(gateway.encode(f"{whole}\n{cut}"))
    made = await post(gateway, tools=[TOOL], max_output_tokens=200)
    assert [(item["type"], item["status"]) for item in made["output"]] == [
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]
    answered = {"type": "function_call_output", "call_id": made["output"][0]["call_id"], "output": "drizzle"}
    await post(gateway, input=[answered], previous_response_id=made["id"], tools=[TOOL])
    assert "Oslo" in prompt_of(gateway)
    assert "Bergen" not in prompt_of(gateway)


async def test_thinking_is_an_item_of_its_own(served_model: ServedModel):
    output = OutputItems(served_model.tokenizer, with_logprobs=False)
    deltas = [ChoiceDelta(0, "", 1, reasoning="H"), ChoiceDelta(0, "", 1, reasoning="m."), ChoiceDelta(0, "Yes.", 1)]
    told = [event for delta in deltas for event in output.take(delta)] + list(output.finish())
    thinking, message = output.items
    assert thinking["type"] == "reasoning"
    assert thinking["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Yes."
    pieces = [event["delta"] for event in told if event["type"] == "response.reasoning_text.delta"]
    assert pieces == ["H", "m."]
    done = [event["item"]["status"] for event in told if event["type"] == "response.output_item.done"]
    assert done == ["completed", "completed"]


async def test_stored_responses_can_be_read_and_deleted(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("kept"))
    made = await gateway.openai.responses.create(model=MODEL_NAME, input="Hi")
    assert (await gateway.openai.responses.retrieve(made.id)).output_text == "kept"
    items = await gateway.openai.responses.input_items.list(made.id)
    assert [item.model_dump()["content"][0]["text"] for item in items.data] == ["Hi"]
    await gateway.openai.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="it was not stored, was deleted, or is too old"):
        await gateway.openai.responses.retrieve(made.id)


async def test_input_items_come_in_pages(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("ok"))
    texts = [f"message {index}" for index in range(5)]
    made = await post(gateway, input=[{"role": "user", "content": text} for text in texts])
    path = f"/v1/responses/{made['id']}/input_items"
    first = (await gateway.http.get(path, params={"limit": 2, "order": "asc"})).json()
    assert [item["content"][0]["text"] for item in first["data"]] == texts[:2]
    assert first["has_more"] is True
    rest = (await gateway.http.get(path, params={"after": first["last_id"], "order": "asc"})).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == texts[2:]
    assert rest["has_more"] is False


async def test_store_false_is_not_stored(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("gone"))
    made = await post(gateway, store=False)
    assert (await gateway.http.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_a_background_response_is_followed_from_any_event(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three four"))
    queued = await post(gateway, background=True)
    assert queued["status"] == "queued"
    path = f"/v1/responses/{queued['id']}"
    told = parsed((await gateway.http.get(path, params={"stream": "true"})).text)
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "one two three four"
    for first in (0, 3, len(told) - 1):
        params = {"stream": "true", "starting_after": str(first)}
        assert parsed((await gateway.http.get(path, params=params)).text) == told[first + 1 :]
    assert (await gateway.http.get(path)).json()["status"] == "incomplete"


async def test_a_background_response_is_cancelled(gateway: GatewayServer):
    gateway.engine.script = says([40_000] * 1000, step_s=0.05)
    queued = await post(gateway, background=True)
    await gateway.engine.until(lambda: bool(gateway.engine.requests))
    async with asyncio.timeout(5):
        cancelled = (await gateway.http.post(f"/v1/responses/{queued['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    await gateway.engine.until(lambda: bool(gateway.engine.closed))


def json_schema(schema: object) -> dict[str, object]:
    return {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"background": True, "store": False}, "background", "background needs store"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "there is no response 'resp_x'"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role", "input[0].role should be 'system'"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "tools[0].name: String should match"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"metadata": dict.fromkeys(map(str, range(17)), "x")}, "metadata", "has 17 entries; at most 16"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id goes on from"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt is not served: the server has no prompt templates"),
        (
            {"response_format": {"type": "json_object"}},
            "response_format",
            "response_format is not served: use text.format",
        ),
        ({"guided_json": {"type": "object"}}, "guided_json", "guided_json is not served: use text.format"),
        ({"n": 2}, "n", "a response is one answer"),
        ({"input": []}, "input", "has 0 items; at least 1"),
        (
            {"input": [{"type": "computer_call"}]},
            "input[0].type",
            "message, reasoning, custom_tool_call",
        ),
        ({"input": [{"content": "x"}]}, "input[0].role", "is required"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "only text parts",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "maximum context length"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "is required"),
        (json_schema({"not": {}}), "text.format.schema", "text.format.schema: the keyword 'not' is not supported"),
        (json_schema({"pattern": "(?=a)"}), "text.format", "text.format cannot be used: "),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "http://elsewhere/"}}}},
            "text.format.schema",
            "text.format.schema",
        ),
        ({"temperature": -1}, "temperature", "at least 0"),
    ],
)
async def test_refusals_name_the_field(gateway: GatewayServer, fields, param, message):
    response = await gateway.http.post("/v1/responses", json={"model": MODEL_NAME, "input": "Hi", **fields})
    assert response.status_code in (400, 404)
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


async def test_only_background_responses_can_be_streamed_later_or_cancelled(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    made = await post(gateway)
    for response in (
        await gateway.http.get(f"/v1/responses/{made['id']}", params={"stream": "true"}),
        await gateway.http.post(f"/v1/responses/{made['id']}/cancel"),
    ):
        assert response.status_code == 400
        assert "background=true" in response.json()["error"]["message"]


async def test_a_call_is_one_item_also_with_logprobs(gateway: GatewayServer):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    gateway.engine.script = says(gateway.encode(f"Look: {call}"), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    answer = await post(gateway, tools=[TOOL], include=["message.output_text.logprobs"], top_logprobs=1)
    message, made = answer["output"]
    assert (made["type"], made["name"], made["arguments"]) == ("function_call", "weather", '{"city": "Oslo"}')
    spelled = b"".join(bytes(token["bytes"]) for token in message["content"][0]["logprobs"])
    assert spelled.decode().startswith("Look:")


async def test_a_custom_tool_goes_back_and_forth(gateway: GatewayServer):
    call = '<tool_call>\n{"name": "run", "arguments": {"input": "ls\\n"}}\n</tool_call>'
    tools = [{"type": "custom", "name": "run", "format": {"type": "text"}}, {"type": "web_search"}]
    gateway.engine.script = says(gateway.encode(call), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    told = await events(gateway, tools=tools)
    item = told[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["input"], item["status"]) == (
        "custom_tool_call",
        "run",
        "ls\n",
        "completed",
    )
    deltas = [event["delta"] for event in told if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == "ls\n"
    assert [e["input"] for e in told if e["type"] == "response.custom_tool_call_input.done"] == ["ls\n"]
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "a.txt"}
    await post(gateway, tools=tools, previous_response_id=told[-1]["response"]["id"], input=[result])
    prompt = prompt_of(gateway)
    assert prompt.index('"arguments": {"input": "ls\\n"}') < prompt.index("a.txt")


async def test_allowed_tools_and_named_ones(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    tools = [TOOL, {"type": "custom", "name": "run"}]
    for choice in (
        {"type": "custom", "name": "run"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "run"}, {"type": "mcp"}]},
    ):
        answer = await post(gateway, tools=tools, tool_choice=choice)
        assert answer["tool_choice"] == choice
        grammar = gateway.engine.requests[-1].sampling.grammar
        assert "run" in grammar
        assert "weather" not in grammar


async def test_a_stop_string_within_a_call_leaves_it_incomplete(gateway: GatewayServer):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    gateway.engine.script = says(gateway.encode(call))
    answer = await post(gateway, tools=[TOOL], stop="slo")
    assert (answer["status"], answer["output"][0]["status"]) == ("completed", "incomplete")
    assert answer["output"][0]["arguments"] == '{"city": "O'


async def test_truncation_auto_drops_the_oldest_turns(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("ok"))
    long = "word " * 60
    conversation: list[dict[str, Any]] = [{"role": "developer", "content": "Be brief."}]
    for number in range(20):
        conversation.append({"role": "user", "content": f"question {number} {long}"})
        conversation.append({"role": "assistant", "content": f"answer {number}"})
    conversation.append({"role": "user", "content": "the last"})
    body = {"model": MODEL_NAME, "input": conversation, "max_output_tokens": 100}
    refused = await gateway.http.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = await post(gateway, **body, truncation="auto")
    assert answer["truncation"] == "auto"
    prompt = prompt_of(gateway)
    assert "Be brief." in prompt
    assert "question 0 " not in prompt
    assert prompt.index("question 19") < prompt.index("answer 19") < prompt.index("the last")
    used = len(gateway.engine.requests[-1].prompt_token_ids) + 100
    assert used <= 512 < used + 80, "no more than was needed"
    too_long = {**body, "input": "word " * 600, "truncation": "auto"}
    assert (await gateway.http.post("/v1/responses", json=too_long)).status_code == 400


async def test_what_can_be_included_is_known(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("ok"))
    await post(gateway, include=["reasoning.encrypted_content"], max_tool_calls=3)
    refused = await gateway.http.post(
        "/v1/responses", json={"model": MODEL_NAME, "input": "x", "include": ["reasoning.encrypted_content", "all"]}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "include[1]"
    assert (await post(gateway, max_tool_calls=3))["max_tool_calls"] == 3


async def test_followers_of_a_cancelled_response_are_told(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three four five six"), step_s=0.2)
    queued = await post(gateway, background=True)
    path = f"/v1/responses/{queued['id']}"
    async with asyncio.TaskGroup() as group:
        follower = group.create_task(gateway.http.get(path, params={"stream": True}))
        await asyncio.sleep(0.3)
        cancelled = await gateway.http.post(f"{path}/cancel")
    last = parsed(follower.result().text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"] == cancelled.json()
