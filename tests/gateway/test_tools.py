"""Tools and thinking, through the official client: what the model is shown, and what its text becomes."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.served_model import ServedModel
from pageloom.chat_template import ChatTemplate
from pageloom.outputs import FinishReason
from pageloom.parsing.reasoning import detect_reasoning_format
from pageloom.parsing.tool_formats import detect_tool_format
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server
from tests.support.scripted_engine import EOS_TOKEN_ID, says

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEMPLATES = Path(__file__).parent.parent / "support/templates"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
HELLO: Any = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris 😀"}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PAIRS = [("weather", '{"city": "Paris 😀"}'), ("now", "{}")]


def custom(name: str, **grammar: str) -> Any:
    form = {"format": {"type": "grammar", "grammar": grammar}} if grammar else {}
    return {"type": "custom", "custom": {"name": name, "description": "Runs it.", **form}}


def allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def with_template(model: ServedModel, name: str) -> ServedModel:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return replace(
        model,
        chat_template=ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}),
        tool_format=detect_tool_format(source),
        reasoning_format=detect_reasoning_format(source),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def qwen(served_model: ServedModel) -> AsyncGenerator[GatewayServer]:
    async with gateway_server(with_template(served_model, "qwen3")) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_as_the_official_client_sees_them(gateway: GatewayServer, stream: bool):
    gateway.engine.script = ends(gateway, f"I look it up.\n{CALL}\n{CALL_NOW}")
    fields: Any = {"model": MODEL_NAME, "messages": HELLO, "tools": [WEATHER, NOW], "logprobs": True}
    answer: Any
    if stream:
        async with gateway.openai.chat.completions.stream(**fields) as parts:
            answer = await parts.get_final_completion()
    else:
        answer = await gateway.openai.chat.completions.create(**fields)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look it up."
    calls = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == PAIRS
    assert all(call.id.startswith("call_") for call in calls)
    assert len({call.id for call in calls}) == 2
    assert choice.logprobs is not None
    # A token of the text and the one that ends it.
    spelled = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content or [])
    assert spelled.startswith(f"I look it up.\n{CALL}\n{CALL_NOW}".encode())


async def test_the_stream_keeps_the_rules_of_calls(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, f"{CALL}\n{CALL_NOW}")
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events((await gateway.chat(stream=True, tools=[WEATHER, NOW])).text)
        if chunk["choices"]
    ]
    parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
    assert [part["index"] for part in parts] == sorted(part["index"] for part in parts)
    for index in (0, 1):
        own = [part for part in parts if part["index"] == index]
        assert {"id", "type"} <= set(own[0])
        assert own[0]["type"] == "function"
        assert all("id" not in part and "name" not in part["function"] for part in own[1:])
        assert "".join(part["function"]["arguments"] for part in own) == PAIRS[index][1]
    assert len(parts) > 4, "arguments come in pieces"
    assert all(not delta.get("content") for delta in deltas)


async def test_content_is_null_beside_calls_and_calls_are_absent_without(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, CALL)
    message = (await gateway.chat(tools=[WEATHER])).json()["choices"][0]["message"]
    assert message["content"] is None
    gateway.engine.script = ends(gateway, "No.")
    answer = (await gateway.chat(tools=[WEATHER])).json()["choices"][0]
    assert answer["message"] == {"role": "assistant", "content": "No."}
    assert answer["finish_reason"] == "stop"


async def test_a_call_that_is_cut_ends_by_length(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode(CALL[:55]))
    choice = (await gateway.chat(tools=[WEATHER])).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_within_a_call_is_the_end_that_is_told(gateway: GatewayServer, stream: bool):
    """A caller that runs calls by the finish reason must not run half a one."""
    gateway.engine.script = ends(gateway, f"{CALL_NOW}\n{CALL}")
    for stop, finish, last in (("ris", "stop", '{"city": "Pa'), ("</tool_call>\n<", "tool_calls", "{}")):
        answer = await gateway.chat(tools=[WEATHER, NOW], stop=[stop], stream=stream)
        if stream:
            choices = [chunk["choices"][0] for chunk in events(answer.text)]
            parts = [part for choice in choices for part in choice["delta"].get("tool_calls", [])]
            final = choices[-1]
            calls = ["".join(p["function"]["arguments"] for p in parts if p["index"] == i) for i in (0, 1)]
        else:
            final = answer.json()["choices"][0]
            calls = [call["function"]["arguments"] for call in final["message"]["tool_calls"]]
        assert (final["finish_reason"], final["stop_reason"]) == (finish, stop)
        assert [arguments for arguments in calls if arguments][-1] == last


@pytest.mark.parametrize("stream", [False, True])
async def test_the_input_of_a_custom_tool_is_its_text(gateway: GatewayServer, stream: bool):
    code = 'print("hé")\n'
    written = json.dumps({"input": code})
    gateway.engine.script = ends(gateway, f'<tool_call>\n{{"name": "run", "arguments": {written}}}\n</tool_call>')
    fields: Any = {"model": MODEL_NAME, "messages": HELLO, "tools": [custom("run"), NOW]}
    if stream:
        kinds, calls = set(), []
        async for chunk in await gateway.openai.chat.completions.create(**fields, stream=True):
            calls += [call.model_dump(exclude_none=True) for call in chunk.choices[0].delta.tool_calls or []]
        kinds = {call["type"] for call in calls if "type" in call}
        assert kinds == {"custom"}
        assert calls[0]["custom"] == {"name": "run", "input": ""}
        assert "".join(call["custom"]["input"] for call in calls) == code
        assert len(calls) > 3
    else:
        answer = await gateway.openai.chat.completions.create(**fields)
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "custom"
        assert (call.custom.name, call.custom.input) == ("run", code)
        said: Any = [*HELLO, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "hé"}]
        await gateway.openai.chat.completions.create(**{**fields, "messages": said})
        asked = gateway.model.tokenizer.decode(gateway.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
        assert f'{{"name": "run", "arguments": {json.dumps({"input": code}, ensure_ascii=False)}}}' in asked


async def test_without_parallel_calls_the_first_ends_the_answer(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode(f"{CALL_NOW} {CALL} {CALL}"), step_s=0.002)
    choice = (await gateway.chat(tools=[WEATHER, NOW], parallel_tool_calls=False)).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["finish_reason"] == "tool_calls"
    assert gateway.engine.was_cancelled(gateway.engine.requests[0], 0)


async def test_choices_call_on_their_own(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, CALL, "Sunny.", CALL_NOW)
    choices = (await gateway.chat(tools=[WEATHER, NOW], n=3)).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [len(choice["message"].get("tool_calls", ())) for choice in choices] == [1, 0, 1]


async def test_tool_choice_none_neither_shows_nor_reads_calls(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, CALL)
    choice = (await gateway.chat(tools=[WEATHER], tool_choice="none")).json()["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert "weather" not in prompt_of(gateway).lower()


async def test_a_template_without_tools_gets_an_instruction(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, "x")
    history = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Paris"}', "call_1")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert (await gateway.chat(messages=history, tools=[WEATHER])).status_code == 200
    prompt = prompt_of(gateway)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '{"name": "weather", "description": "Tells the weather.", "parameters": {"type"' in prompt
    assert "strict" not in prompt
    assert (
        'assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>' in prompt
    )
    assert "<|im_start|>tool\nrain<|im_end|>" in prompt


async def test_a_template_with_tools_shows_them_itself(qwen: GatewayServer):
    qwen.engine.script = ends(qwen, "x")
    history = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call("weather", '{"city":"Paris"}', "call_1")]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
    ]
    assert (await qwen.chat(messages=history, tools=[WEATHER])).status_code == 200
    prompt = prompt_of(qwen)
    assert prompt.count("# Tools") == 1
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_is_told_apart(qwen: GatewayServer, stream: bool):
    """The template's prompt ends with the mark that opens it."""
    qwen.engine.script = ends(qwen, f"Let me think.\n</think>\n\nI look.\n{CALL}")
    response = await qwen.chat(tools=[WEATHER], stream=stream)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response.text)]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert thought == "".join(delta.get("reasoning", "") for delta in deltas)
        content = "".join(delta.get("content", "") for delta in deltas)
    else:
        message = response.json()["choices"][0]["message"]
        thought, content = message["reasoning_content"], message["content"]
        assert message["reasoning"] == thought
        assert message["tool_calls"][0]["function"]["arguments"] == PAIRS[0][1]
    assert (thought, content) == ("Let me think.", "I look.")


async def test_the_usage_counts_the_thinking_s_tokens(qwen: GatewayServer):
    thought = qwen.encode("Let me think.\n</think>")
    qwen.engine.script = ends(qwen, "Let me think.\n</think>\n\nYes.")
    for include in (True, False):
        usage = (await qwen.chat(include_reasoning=include)).json()["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
        response = await qwen.chat(stream=True, stream_options={"include_usage": True}, include_reasoning=include)
        assert events(response.text)[-1]["usage"] == usage


async def test_thinking_may_be_switched_off_or_left_out(qwen: GatewayServer):
    qwen.engine.script = ends(qwen, "Hm.</think>Yes.")
    message = (await qwen.chat(include_reasoning=False)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes."}
    qwen.engine.script = ends(qwen, "Yes.")
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        message = (await qwen.chat(**fields)).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Yes."}


async def test_marks_that_are_special_tokens_are_read_and_not_shown(served_model: ServedModel):
    """As in Mistral's and Gemma's vocabularies; here the default model's own mark stands for one."""
    tokenizer = served_model.tokenizer
    assert tokenizer.special_ids_by_text["<|im_start|>"]
    im_start = replace(served_model.tool_format, begins=("<|im_start|>",), ends=())
    async with gateway_server(replace(served_model, tool_format=im_start)) as server:
        server.engine.script = ends(server, 'a <|im_start|>{"name": "now", "arguments": {}}')
        message = (await server.chat(tools=[NOW])).json()["choices"][0]["message"]
        assert message["content"] == "a"
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
        server.engine.script = ends(server, "a <|im_start|> b")
        assert (await server.chat(tools=[NOW])).json()["choices"][0]["message"]["content"] == "a  b"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [custom("x", syntax="lark", definition="start: /a/")]}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": [NOW, custom("now")]}, "tools[1].custom.name"),
        ({"tools": [NOW], "tool_choice": {"type": "custom", "custom": {"name": "now"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": allowed("auto", "weather")}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"documents": [{"text": "x"}]}, "documents"),
    ],
)
async def test_bad_tools(gateway: GatewayServer, fields: dict[str, Any], param: str):
    response = await gateway.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not gateway.engine.requests


async def test_the_most_tools(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, "x")
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(128)]
    assert (await gateway.chat(tools=tools, tool_choice="none")).status_code == 200
    assert (await gateway.chat(tools=[], tool_choice="auto")).status_code == 200


def ends(gateway: GatewayServer, *texts: str) -> Any:
    """A script that says these and then that it has ended."""
    outputs = [[*gateway.encode(text), EOS_TOKEN_ID] for text in texts]
    return says(*outputs, reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)


def prompt_of(gateway: GatewayServer) -> str:
    token_ids = gateway.engine.requests[-1].prompt_token_ids
    return gateway.model.tokenizer.decode(token_ids, skip_special_tokens=False)


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def events(text: str) -> list[dict[str, Any]]:
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]
