"""Structured outputs at the user's door: which grammar the engine gets for which field, and what is refused."""

import json
from typing import Any

import pytest

from pageloom.outputs import FinishReason
from tests.gateway.test_chat import events
from tests.support.gateway_server import GatewayServer
from tests.support.grammar_text import accepts
from tests.support.scripted_engine import EOS_TOKEN_ID, says
from tests.support.serving import metric

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
ANSWER = '{"city": "Oslo", "size": "small"}'
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<fn=a>", "schema": {"type": "integer"}, "end": "</fn>"}],
    "triggers": ["<fn="],
}
FORMAT = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "x"},
        {
            "type": "tag",
            "begin": "[",
            "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
            "end": "]",
        },
    ],
}
# A request's fields, a text its grammar allows, one it does not.
REQUESTS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, '{"any": ["thing"]}', "[]"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, ANSWER, "{}"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
        ANSWER,
        '{"city": "Oslo", "size": "medium"}',
    ),
    ({"response_format": TAG}, "I call <fn=a>3</fn>.", "<fn=b>3</fn>"),
    ({"response_format": {"type": "structural_tag", "format": FORMAT}}, "x[3]", "[3]"),
    ({"structured_outputs": {"structural_tag": {"format": {"type": "regex", "pattern": "a+"}}}}, "aa", "b"),
    ({"structured_outputs": {"json": SCHEMA}}, ANSWER, "{}"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, ANSWER, "{}"),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, ANSWER.replace(" ", ""), ANSWER),
    ({"structured_outputs": {"json_object": True, "whitespace_pattern": "[ ]?"}}, '{"a" : 1 }', '{"a":  1}'),
    ({"structured_outputs": {"json_object": True, "regex": None, "json": None}}, "{}", "1"),
    ({"structured_outputs": {"json_object": False, "regex": "[0-9]+"}}, "12", "1a"),
    (
        {"structured_outputs": {"json": {"properties": {"a": {}}}, "disable_additional_properties": True}},
        '{"a":1}',
        '{"b":1}',
    ),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "maybe"),
    ({"structured_outputs": {"grammar": 'root ::= "a" root | "b"'}}, "aab", "aa"),
    ({"structured_outputs": {"grammar": 'start: "a" start | "b"'}}, "aab", "aa"),
    ({"structured_outputs": {"structural_tag": TAG}}, "<fn=a>3</fn>", "<fn=a>x"),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "<fn=a>3</fn>", "<fn=a>x"),
]


@pytest.mark.parametrize("kind", ["chat", "complete"])
@pytest.mark.parametrize(("fields", "allowed", "forbidden"), REQUESTS)
async def test_the_engine_gets_the_grammar(
    gateway: GatewayServer, kind: str, fields: dict[str, Any], allowed: str, forbidden: str
):
    gateway.engine.script = says(gateway.encode(allowed), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    response = await getattr(gateway, kind)(**fields, n=2, logprobs=None)
    assert response.status_code == 200, response.text
    (request,) = gateway.engine.requests
    assert accepts(request.sampling.grammar, allowed)
    assert not accepts(request.sampling.grammar, forbidden)
    choices = response.json()["choices"]
    texts = [choice["text"] if kind == "complete" else choice["message"]["content"] for choice in choices]
    assert texts == [allowed, allowed]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None},
        {"guided_json": None, "guided_choice": [], "grammar": ""},
    ],
)
async def test_free_text_has_no_grammar(gateway: GatewayServer, fields: dict[str, Any]):
    gateway.engine.script = says(gateway.encode("x"))
    assert (await gateway.chat(**fields)).status_code == 200
    assert gateway.engine.requests[0].sampling.grammar == ""


async def test_a_stream_is_no_different(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode(ANSWER), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    response = await gateway.chat(structured_outputs={"json": SCHEMA}, stream=True)
    chunks = [choice for body in events(response.text) for choice in body["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in chunks) == ANSWER
    assert accepts(gateway.engine.requests[0].sampling.grammar, ANSWER)


async def test_every_prompt_of_a_request_has_it(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("no"))
    await gateway.complete(prompt=["a", "b"], structured_outputs={"choice": ["yes", "no"]})
    assert len({request.sampling.grammar for request in gateway.engine.requests}) == 1
    assert len(gateway.engine.requests) == 2


async def test_the_end_of_the_form_ends_the_answer_whatever_else_is_said(gateway: GatewayServer):
    """The engine sees to it; here the token that ends the answer is none of its text."""
    gateway.engine.script = says(
        [*gateway.encode("no"), EOS_TOKEN_ID], reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID
    )
    fields = {"ignore_eos": True, "min_tokens": 8, "max_tokens": 16, "skip_special_tokens": False}
    response = await gateway.complete(structured_outputs={"choice": ["no"]}, **fields)
    assert response.json()["choices"][0]["text"] == "no"
    assert gateway.engine.requests[0].sampling.min_tokens == 8


async def test_the_official_client_parses_into_a_model(gateway: GatewayServer):
    from pydantic import BaseModel

    class Place(BaseModel):
        city: str
        size: str

    gateway.engine.script = says(gateway.encode(ANSWER), reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID)
    completion = await gateway.openai.chat.completions.parse(
        model="alias", messages=[{"role": "user", "content": "Hi"}], response_format=Place
    )
    assert completion.choices[0].message.parsed == Place(city="Oslo", size="small")


def schema_format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            schema_format({"properties": {"tags": {"type": "array", "uniqueItems": True}}}),
            "response_format.json_schema.schema",
            "the keyword 'uniqueItems' is not supported (at /properties/tags/uniqueItems)",
        ),
        (schema_format({"type": "string", "pattern": "(?=a)b"}), "response_format", "look-around"),
        (schema_format({"type": "object", "required": ["a"], "properties": {"a": False}}), "response_format", "'a'"),
        (schema_format([]), "response_format.json_schema.schema", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
            "is required",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_schema'"),
        ({"response_format": "json_object"}, "response_format", ""),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structures", ""),
        (
            {"response_format": {**TAG, "triggers": ["x"]}},
            "response_format",
            "no structure begins with the trigger 'x'",
        ),
        (
            {"response_format": {**TAG, "structures": [{"begin": "<fn="}]}},
            "response_format.structures[0].end",
            "is required",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "needs exactly one of json, regex, choice, "),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "but has none of them"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "not json and regex"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex", 'invalid regex "["'),
        ({"structured_outputs": {"regex": "a)|(b"}}, "structured_outputs.regex", 'invalid regex "a)|(b"'),
        ({"structured_outputs": {"regex": "\\"}}, "structured_outputs.regex", "invalid regex"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "1 to 16384 characters"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice", "none of them empty"),
        ({"structured_outputs": {"choice": ["a"] * 1001}}, "structured_outputs.choice", "at most 1000"),
        ({"structured_outputs": {"choice": "yes"}}, "structured_outputs.choice", ""),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar", "'x', which is not defined"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "unknown name"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", ""),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag.structures",
            "is required",
        ),
        (
            {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {"type": "free"}}}},
            "structured_outputs.structural_tag.format",
            "must be an object whose type is one of const_string, ",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": ".*"}},
            "structured_outputs.whitespace_pattern",
            "white space",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "cannot be combined",
        ),
        (
            {"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "cannot be combined",
        ),
        ({"guided_json": {"type": "object"}}, "guided_json", "use structured_outputs.json"),
        ({"guided_regex": "a"}, "guided_regex", "use structured_outputs.regex"),
        ({"guided_choice": ["a"]}, "guided_choice", "use structured_outputs.choice"),
        ({"guided_grammar": "a"}, "guided_grammar", "use structured_outputs.grammar"),
        ({"regex": "a"}, "regex", "use structured_outputs.regex"),
        ({"ebnf": "a"}, "ebnf", "use structured_outputs.grammar"),
        ({"json_schema": "{}"}, "json_schema", "use response_format"),
    ],
)
async def test_what_is_refused_before_the_engine_hears_of_it(
    gateway: GatewayServer, fields: dict[str, Any], param: str, message: str
):
    response = await gateway.chat(**fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not gateway.engine.requests


async def test_refusals_are_counted(gateway: GatewayServer):
    async def num_refused() -> float:
        return metric((await gateway.http.get("/metrics")).text, "pageloom_grammars_refused_total")

    before = await num_refused()
    for fields in ({"regex": "(?=a)"}, {"regex": "(?=a)"}, {"regex": "a"}):
        await gateway.chat(structured_outputs=fields, max_tokens=1)
    assert await num_refused() == before + 2
