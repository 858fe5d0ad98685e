"""What the engine may draw when a request forces calls, wants strict ones, or has thinking before a form."""

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher

from gateway.served_model import ServedModel
from pageloom.model_files import locate_model
from pageloom.parsing.reasoning import THINK
from pageloom.parsing.tool_formats import TOOL_FORMATS
from pageloom.tokenizer import load_tokenizer
from tests.gateway.test_tools import HELLO, NOW, WEATHER, allowed, custom, ends
from tests.support.gateway_server import GatewayServer, gateway_server
from tests.support.grammar_text import accepts
from tests.support.scripted_engine import MODEL
from worker_svc.grammar import Vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="module")
PARIS = ("weather", '{"city": "Paris"}')
TIME = ("now", "{}")
LAX: Any = {"type": "function", "function": {**WEATHER["function"], "strict": False}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CITY = {"type": "json_schema", "json_schema": {"name": "c", "schema": WEATHER["function"]["parameters"]}}


async def grammar(gateway: GatewayServer, **fields: Any) -> str:
    gateway.engine.requests.clear()
    gateway.engine.script = ends(gateway, "x")
    response = await gateway.chat(messages=HELLO, **fields)
    assert response.status_code == 200, response.text
    return gateway.engine.requests[0].sampling.grammar


@pytest.mark.parametrize("name", TOOL_FORMATS)
async def test_each_family_writes_the_calls_that_are_forced(served_model: ServedModel, name: str):
    tool_format = TOOL_FORMATS[name]
    write = tool_format.write
    async with gateway_server(replace(served_model, tool_format=tool_format)) as server:
        required = await grammar(server, tools=[WEATHER, NOW], tool_choice="required")
        assert accepts(required, write([PARIS]))
        assert accepts(required, write([PARIS, TIME, PARIS]))
        assert not accepts(required, "Hello.")
        assert not accepts(required, "")
        # What stands in a tag has no type: there 5 is a text, too.
        wrong = '{"town": "Paris"}' if tool_format.tagged else '{"city": 5}'
        assert not accepts(required, write([("weather", wrong)]))
        assert not accepts(required, write([("other", "{}")]))
        assert not accepts(required, write([PARIS]) + " and so on")
        one = await grammar(server, tools=[WEATHER, NOW], tool_choice="required", parallel_tool_calls=False)
        assert accepts(one, write([TIME]))
        assert not accepts(one, write([TIME, PARIS]))
        named = await grammar(server, tools=[WEATHER, NOW], tool_choice=NAMED)
        assert accepts(named, write([PARIS]))
        assert not accepts(named, write([TIME]))
        assert not accepts(named, write([PARIS, PARIS]))


@pytest.mark.parametrize("name", TOOL_FORMATS)
async def test_strict_tools_are_called_as_their_schema_says(served_model: ServedModel, name: str):
    write = TOOL_FORMATS[name].write
    async with gateway_server(replace(served_model, tool_format=TOOL_FORMATS[name])) as server:
        strict = await grammar(server, tools=[WEATHER, NOW])
        for text in ("Hello.", "", write([PARIS]), write([PARIS, TIME])):
            assert accepts(strict, text), text
        assert not accepts(strict, write([("weather", '{"town": "Paris"}')]))
        assert await grammar(server, tools=[LAX, NOW]) == ""
        assert await grammar(server, tools=[WEATHER], tool_choice="none") == ""


async def test_arguments_are_those_that_the_tool_lists(gateway: GatewayServer):
    """Unless it says that there may be others, or does not list any."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    cases: list[tuple[dict[str, Any], bool]] = [
        (city, False),
        ({**city, "additionalProperties": True}, True),
        ({"type": "object"}, True),
        ({"allOf": [city, {"properties": {"size": {"type": "string"}}}]}, True),
    ]
    for parameters, has_others in cases:
        tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
        forced = await grammar(gateway, tools=[tool], tool_choice="required")
        write = gateway.model.tool_format.write
        assert accepts(forced, write([PARIS]))
        assert accepts(forced, write([("weather", '{"city": "Paris", "mood": "good"}')])) is has_others, parameters


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "json"])
async def test_a_form_of_the_answer_leaves_room_for_calls(served_model: ServedModel, name: str):
    tool_format = TOOL_FORMATS[name]
    async with gateway_server(replace(served_model, tool_format=tool_format)) as server:
        for form, answer in ((CITY, '{"city": "Paris"}'), ({"type": "json_object"}, '{"name": "Ann"}')):
            either = await grammar(server, tools=[LAX, NOW], response_format=form)
            calls = tool_format.write([PARIS])
            assert accepts(either, calls if tool_format.has_mark else tool_format.begins[0] + calls)
            assert accepts(either, answer)
            assert not accepts(either, "Hello.")
        forced = await grammar(server, tools=[LAX], tool_choice="required", response_format=CITY)
        assert not accepts(forced, '{"city": "Paris"}')


async def test_thinking_comes_before_a_form(served_model: ServedModel):
    async with gateway_server(replace(served_model, reasoning_format=THINK)) as server:
        forced = await grammar(server, tools=[NOW], tool_choice="required")
        calls = server.model.tool_format.write([TIME])
        assert accepts(forced, f"<think>I must call.</think>\n\n{calls}")
        assert accepts(forced, calls)
        form = await grammar(server, response_format=CITY)
        assert accepts(form, '<think>Which?</think>\n{"city": "Paris"}')
        assert not accepts(form, "<think>Which?</think>Paris")
        server.engine.script = ends(server, '<think>Which?</think>\n{"city": "Paris"}')
        message = (await server.chat(response_format=CITY)).json()["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ('{"city": "Paris"}', "Which?")
        # Other forms begin with the first token, so nothing of them is thinking.
        server.engine.script = ends(server, "yes")
        choice = (await server.chat(structured_outputs={"choice": ["yes", "no"]})).json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "yes"}


async def test_marks_that_are_special_tokens_are_drawn_as_such(served_model: ServedModel):
    """As the marks of Mistral, Gemma and Cohere are; here the default model's own tokens stand for them."""
    written = ('<|im_start|>{"name": "', '", "arguments": ', "}<repo_name>")
    marks: Any = {"begins": ("<|im_start|>",), "ends": ("<repo_name>",), "written": written}
    thinking = replace(THINK, begin="<jupyter_start>", end="<jupyter_output>")
    tool_format = replace(TOOL_FORMATS["hermes"], **marks)
    vocabulary = Vocabulary(
        load_tokenizer(locate_model("")), vocab_size=MODEL.vocab_size, eos_token_ids=MODEL.eos_token_ids
    )

    def drawn(grammar: str, text: str) -> bool:
        token_ids = served_model.tokenizer.encode(text, add_special_tokens=False)
        matcher = LLMatcher(vocabulary.compiled, grammar)
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and bool(matcher.is_accepting())

    model = replace(served_model, tool_format=tool_format, reasoning_format=thinking)
    async with gateway_server(model) as server:
        forced = await grammar(server, tools=[WEATHER, NOW], tool_choice="required")
        strict = await grammar(server, tools=[WEATHER, NOW])
        calls = tool_format.write([PARIS, TIME])
        for before in ("", "<jupyter_start>Hm.<jupyter_output>\n"):
            assert drawn(forced, before + calls)
            assert not drawn(forced, before + "Hello.")
            assert drawn(strict, f"{before}I call {calls} now.")
            assert not drawn(strict, before + '<|im_start|>{"name": "weather", "arguments": {}}<repo_name>')


async def test_the_end_of_forced_calls_is_the_end_of_the_answer(gateway: GatewayServer):
    gateway.engine.script = ends(gateway, gateway.model.tool_format.write([TIME]))
    response = await gateway.chat(tools=[NOW], tool_choice="required", ignore_eos=True)
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    response = await gateway.chat(tools=[NOW], tool_choice={"type": "function", "function": {"name": "now"}})
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [NOW, {"type": "function", "function": {
                "name": "f", "strict": True, "parameters": {"properties": {"a": {"$dynamicRef": "#x"}}}}}]},
            "tools[1].function.parameters",
        ),
        ({"tools": [NOW], "structured_outputs": {"choice": ["a"]}, "tool_choice": "auto"}, "tool_choice"),
    ],
)  # fmt: skip
async def test_what_cannot_be_followed(gateway: GatewayServer, fields: dict[str, Any], param: str):
    gateway.engine.requests.clear()
    response = await gateway.chat(**{"tool_choice": "required", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert not gateway.engine.requests


async def test_a_lax_schema_that_cannot_be_followed_is_any_object(gateway: GatewayServer):
    function = {"name": "f", "parameters": {"properties": {"a": {"$dynamicRef": "#x"}}}}
    forced = await grammar(gateway, tools=[{"type": "function", "function": function}], tool_choice="required")
    assert accepts(forced, gateway.model.tool_format.write([("f", '{"b": 1}')]))


async def test_only_allowed_tools_can_be_called(gateway: GatewayServer):
    write = gateway.model.tool_format.write
    for mode in ("auto", "required"):
        some = await grammar(gateway, tools=[LAX, NOW], tool_choice=allowed(mode, "now"))
        assert accepts(some, write([TIME]))
        assert not accepts(some, write([PARIS]))
        assert accepts(some, "Hello.") == (mode == "auto")
        prompt = gateway.model.tokenizer.decode(gateway.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
        assert "weather" in prompt, "the model sees all tools"
    assert await grammar(gateway, tools=[LAX, NOW], tool_choice=allowed("auto", "weather", "now")) == ""


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "add"}}])
async def test_the_input_of_a_custom_tool_follows_its_regular_expression(gateway: GatewayServer, choice: Any):
    write = gateway.model.tool_format.write
    tool = custom("add", syntax="regex", definition=r'^[0-9]+ \+ "[0-9]+"$')
    wanted = await grammar(gateway, tools=[tool], tool_choice=choice)
    assert accepts(wanted, write([("add", r'{"input": "1 + \"23\""}')]))
    assert not accepts(wanted, write([("add", '{"input": "1 - 2"}')]))
    assert not accepts(wanted, write([("add", '{"input": "1 + 23"}')]))
    assert await grammar(gateway, tools=[custom("add")]) == ""


async def test_arguments_in_tags_are_as_their_schema_says(served_model: ServedModel):
    properties = {
        "code": {"type": "string"},
        "unit": {"enum": ["km", "mi"]},
        "days": {"type": "integer"},
        "at": {"$ref": "#/$defs/place"},
    }
    place = {
        "type": "object",
        "properties": {"x": {"type": "number"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    schema = {"type": "object", "properties": properties, "required": ["code", "unit"], "$defs": {"place": place}}
    function = {"name": "f", "parameters": schema, "strict": True}
    async with gateway_server(replace(served_model, tool_format=TOOL_FORMATS["qwen3_coder"])) as server:
        write = server.model.tool_format.write
        forced = await grammar(server, tools=[{"type": "function", "function": function}], tool_choice="required")
        for arguments, is_right in (
            ({"code": "a\n<b> {", "unit": "km"}, True),
            ({"code": "", "unit": "mi", "days": 3, "at": {"x": 1.5}}, True),
            ({"code": "x", "unit": "m"}, False),
            ({"code": "x"}, False),
            ({"code": "x", "unit": "km", "days": "three"}, False),
            ({"code": "x", "unit": "km", "at": {"y": 1}}, False),
        ):
            assert accepts(forced, write([("f", json.dumps(arguments))])) == is_right, arguments
        for keyword in ({"pattern": "a"}, {"minLength": 3}):
            text = {"type": "object", "properties": {"a/b": {"type": "string", **keyword}}}
            tool = {"type": "function", "function": {**function, "parameters": text}}
            refused = await server.chat(tools=[tool])
            assert refused.status_code == 400
            assert f"/properties/a~1b/{next(iter(keyword))}" in refused.json()["error"]["message"]
