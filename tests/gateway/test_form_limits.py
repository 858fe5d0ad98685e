"""The limits on the form of an answer, as an operator sets them: one below, at, and one above. Those by default are
held against the walks themselves, in tests/grammars."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
import pytest_asyncio

from gateway.served_model import ServedModel
from pageloom.errors import InvalidConfig
from pageloom.form_limits import FormLimits
from pageloom.grammar_limits import GrammarLimits
from pageloom.limit_fields import described_limits
from tests.support.gateway_server import GatewayServer, gateway_server
from tests.support.scripted_engine import says

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = FormLimits(
    max_schema_depth=3,
    max_subschemas=4,
    max_enum_values=3,
    max_enum_bytes=20,
    max_pattern_chars=5,
    max_regex_chars=6,
    max_choice_texts=3,
    max_grammar_rules=3,
    max_structural_tags=2,
    max_tag_parts=4,
)


def tower(levels: int) -> dict[str, Any]:
    return reduce(lambda schema, _: {"type": "array", "items": schema}, range(levels - 1), {"type": "null"})


def wide(num_subschemas: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(num_subschemas - 1)}}


def rules(count: int) -> str:
    return "\n".join(
        [f"root ::= {' '.join(f'r{i}' for i in range(1, count))}", *(f'r{i} ::= "a"' for i in range(1, count))]
    )


def tag(num_structures: int) -> dict[str, Any]:
    structures = [{"begin": f"<{i}>", "schema": {"type": "null"}, "end": "</>"} for i in range(num_structures)]
    return {"type": "structural_tag", "structures": structures, "triggers": ["<"]}


def parts(count: int) -> dict[str, Any]:
    return {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}] * (count - 1)}}


# Limit, and structured_outputs of that size.
SIZED: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
    ("max_schema_depth", lambda n: {"json": tower(n)}),
    ("max_subschemas", lambda n: {"json": wide(n)}),
    ("max_enum_values", lambda n: {"json": {"enum": list(range(n))}}),
    ("max_enum_bytes", lambda n: {"json": {"enum": ["a" * (n - 4)]}}),
    ("max_pattern_chars", lambda n: {"json": {"type": "string", "pattern": "a" * n}}),
    ("max_regex_chars", lambda n: {"regex": "a" * n}),
    ("max_choice_texts", lambda n: {"choice": [str(i) for i in range(n)]}),
    ("max_grammar_rules", lambda n: {"grammar": rules(n)}),
    ("max_structural_tags", lambda n: {"structural_tag": tag(n)}),
    ("max_tag_parts", lambda n: {"structural_tag": parts(n)}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(served_model: ServedModel) -> AsyncGenerator[GatewayServer]:
    async with gateway_server(replace(served_model, form_limits=SMALL)) as running:
        running.engine.script = says(running.encode("x"))
        yield running


async def test_each_is_tried():
    of_compiling = {"max_grammar_compile_s", "max_grammar_compile_bytes"}
    assert {name for name, _ in SIZED} == {limit.name for limit in described_limits(FormLimits)} - of_compiling


@pytest.mark.parametrize(("limit", "form"), SIZED, ids=[name for name, _ in SIZED])
async def test_below_at_and_above(small: GatewayServer, limit: str, form: Callable[[int], dict[str, Any]]):
    most = getattr(SMALL, limit)
    for size, status in ((most - 1, 200), (most, 200), (most + 1, 400)):
        response = await small.complete(structured_outputs=form(size), max_tokens=1)
        assert response.status_code == status, response.text
    error = response.json()["error"]
    assert str(most) in error["message"]
    assert error["param"].startswith("structured_outputs.")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": wide(5)}}},
            "response_format.json_schema.schema",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": wide(5), "strict": True}}]},
            "tools[0].function.parameters",
        ),
        (
            {"response_format": {**tag(1), "triggers": ["<"] * 3}},
            "response_format.triggers",
        ),
    ],
)
async def test_they_hold_wherever_a_form_is_given(small: GatewayServer, fields: dict[str, Any], param: str):
    response = await small.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("kind", [FormLimits, GrammarLimits])
async def test_settings_have_bounds_too(kind: type[Any]):
    for limit in described_limits(kind):
        for value in (limit.low, limit.high):
            assert getattr(kind(**{limit.name: value}), limit.name) == value
        for value in (limit.low - 1, limit.high + 1):
            with pytest.raises(InvalidConfig, match=f"must be between {limit.low} and {limit.high}, not {value}$"):
                kind(**{limit.name: value})
