"""The walk over a JSON schema before it is compiled: what is refused, where, and in which form the rest goes on."""

import json
import time
from typing import Any

import pytest

from pageloom.errors import InvalidRequest
from pageloom.grammars.json_schema import normalize_schema


def refusal(schema: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        normalize_schema(schema, param="response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema"
    return caught.value.message.removeprefix("response_format.json_schema.schema: ")


def in_property(schema: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b~c": schema}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {}}, "the keyword 'not' is not supported (at /properties/a~1b~0c/not)"),
        ({"items": {"uniqueItems": True}}, "'uniqueItems' is not supported (at /properties/a~1b~0c/items/uniqueItems)"),
        ({"anyOf": [{}, {"if": {}}]}, "(at /properties/a~1b~0c/anyOf/1/if)"),
        ({"dependentRequired": {"a": ["b"]}}, "anyOf can hold the cases"),
        ({"type": "string", "nullable": True}, '["string", "null"]'),
        ({"propertyNames": {"pattern": "^a"}}, "patternProperties"),
        ({"unevaluatedProperties": False}, "use additionalProperties"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"format": "iri"}, "the format 'iri' is not supported; supported are date-time, "),
        ({"format": 3}, "format must be a string"),
        ({"type": "text"}, "type must be one of array, boolean, "),
        ({"type": []}, "type must be one of"),
        ({"enum": []}, "at least one value"),
        ({"enum": "a"}, "at least one value"),
        ({"minLength": -1}, "whole number of at least 0 (at /properties/a~1b~0c/minLength)"),
        ({"maxItems": 1.5}, "whole number"),
        ({"minItems": True}, "whole number"),
        ({"minimum": "3"}, "must be a number"),
        ({"multipleOf": 0}, "above 0"),
        ({"pattern": 3}, "regular expression"),
        ({"pattern": "a" * 4097}, "longer than 4096"),
        ({"required": "a"}, "list of strings"),
        ({"properties": []}, "an object of schemas"),
        ({"anyOf": []}, "at least one schema"),
        ({"items": 3}, "a schema must be an object or a boolean, not a number"),
        ({"items": [{}], "prefixItems": [{}]}, "beside prefixItems"),
        ({"$defs": []}, "$defs must be an object"),
        ({"$ref": "https://example.com/schema"}, "only this document can be referred to"),
        ({"$ref": "#name"}, "only this document"),
        ({"$ref": "#/$defs/missing"}, "$ref points to '/$defs/missing', which does not exist"),
        ({"$id": "urn:x"}, "$id is only supported at the root"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "the alternatives 0 and 1 of oneOf may both hold"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named_with_its_place(schema: object, message: str):
    assert message in refusal(in_property(schema))


def test_the_dialect_must_be_known():
    assert "$schema must be one of" in refusal({"$schema": "https://example.com/my-dialect"})
    assert normalize_schema({"$schema": "http://json-schema.org/draft-07/schema#", "type": "null"}, param="p") == {
        "type": "null"
    }


@pytest.mark.parametrize(
    "keyword",
    [
        {"title": "A", "description": "b", "default": 1, "examples": [2], "deprecated": True, "$comment": "c"},
        {"discriminator": {"propertyName": "kind"}, "x-order": 3, "format": "int32", "x-guidance": {"lenient": True}},
        {"uniqueItems": False, "nullable": False, "propertyNames": {"type": "string"}, "unevaluatedProperties": True},
        {"$defs": {"unused": {"not": {}}}, "definitions": {"unused": {"if": {}}}},
    ],
)
def test_what_restricts_nothing_is_left_out(keyword: dict[str, object]):
    assert normalize_schema(in_property({"type": "string", **keyword}), param="p") == in_property({"type": "string"})


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ({"items": [{"type": "null"}], "additionalItems": False}, {"prefixItems": [{"type": "null"}], "items": False}),
        ({"items": {"type": "null"}, "additionalItems": False}, {"items": {"type": "null"}}),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"minLength": 2.0}, {"minLength": 2}),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}),
        (
            {"oneOf": [{"const": 1}], "anyOf": [{"type": "number"}]},
            {"anyOf": [{"type": "number"}], "allOf": [{"anyOf": [{"const": 1}]}]},
        ),
    ],
)
def test_older_spellings_become_todays(given: dict[str, object], normal: dict[str, object]):
    assert normalize_schema(given, param="p") == normal


def test_references_go_to_the_root_whatever_they_point_to():
    schema = {
        "properties": {"a": {"$ref": "#/components/x~1y"}, "b": {"$ref": "#/properties/a"}, "c": {"$ref": "#"}},
        "components": {"x/y": {"type": "string"}},
    }
    normal = normalize_schema(schema, param="p")
    references = {"a": {"$ref": "#/$defs/d0"}, "b": {"$ref": "#/$defs/d1"}, "c": {"$ref": "#/$defs/d2"}}
    assert normal == {
        "properties": references,
        "$defs": {"d0": {"type": "string"}, "d1": {"$ref": "#/$defs/d0"}, "d2": {"properties": references}},
    }


def test_in_old_dialects_a_reference_hides_what_stands_beside_it():
    schema = {
        "definitions": {"a": {"type": "string"}},
        "properties": {"x": {"$ref": "#/definitions/a", "maxLength": 1}},
    }
    old = normalize_schema({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, param="p")
    new = normalize_schema(schema, param="p")
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    assert old["properties"] == {"x": {"$ref": "#/$defs/d0"}}
    assert new["properties"] == {"x": {"$ref": "#/$defs/d0", "maxLength": 1}}


def test_objects_are_closed_on_demand_where_they_do_not_say():
    schema = {"properties": {"a": {"properties": {}, "additionalProperties": True}}}
    assert normalize_schema(schema, param="p", closed_objects=True) == {**schema, "additionalProperties": False}


A: dict[str, Any] = {"properties": {"a": {}}}
B: dict[str, Any] = {"properties": {"b": {}}}


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"anyOf": [A, B]}, True),
        ({"type": "object", "allOf": [A]}, True),
        ({"items": A}, True),
        ({"allOf": [{"items": A}, {"items": B}]}, True),
        ({"allOf": [A, B]}, False),
        ({**A, "anyOf": [B]}, False),
        ({"anyOf": [B], "oneOf": [A]}, False),
        ({"allOf": [{"anyOf": [A]}, {"minProperties": 1}]}, False),
    ],
)
def test_an_object_is_not_closed_to_what_others_list(schema: dict[str, Any], is_closed: bool):
    normal = json.dumps(normalize_schema(schema, param="p", closed_objects=True))
    assert normal.count('"additionalProperties": false') == (normal.count('"properties"') if is_closed else 0)


@pytest.mark.parametrize(
    ("root", "is_closed"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, True),
        ({"$ref": "#/$defs/a", **B, "$defs": {"a": A}}, False),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}}, True),
        ({**B, "anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}}, False),
        # Alone in one place, in company in another that is found later.
        ({"items": {"$ref": "#/$defs/a"}, "prefixItems": [{"$ref": "#/$defs/c"}],
          "$defs": {"a": A, "c": {**B, "$ref": "#/$defs/a"}}}, False),
    ],
)  # fmt: skip
def test_nor_is_what_it_refers_to(root: dict[str, Any], is_closed: bool):
    normal = json.dumps(normalize_schema(root, param="p", closed_objects=True))
    assert ('{"properties": {"a": {}}, "additionalProperties": false}' in normal) is is_closed
    assert ('{"properties": {"a": {}}}' in normal) is not is_closed


def tower(levels: int) -> object:
    schema: object = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def test_bounds_of_a_schema():
    normalize_schema(tower(32), param="p")
    assert "deeper than 32 levels (at " in refusal(tower(33))
    normalize_schema({"properties": {str(i): {} for i in range(9999)}}, param="p")
    assert "more than 10000 subschemas (at /properties/9999)" in refusal(
        {"properties": {str(i): {} for i in range(10_000)}}
    )
    normalize_schema({"enum": list(range(1000))}, param="p")
    assert "more than 1000 values" in refusal({"anyOf": [{"enum": list(range(1000))}, {"const": "a"}]})
    normalize_schema({"enum": ["a" * (65536 - 4)]}, param="p")
    assert "more than 65536 bytes" in refusal({"enum": ["a" * (65536 - 3)]})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"oneOf": [{"$ref": "#/$defs/a"}]}]}}},
    ],
)
def test_references_in_a_circle_are_refused(schema: object):
    assert "leads back to itself" in refusal(schema)


def test_recursion_through_a_value_is_fine():
    normalize_schema({"properties": {"next": {"$ref": "#"}}, "items": {"anyOf": [{"$ref": "#"}]}}, param="p")


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "node",
    [
        NODE,
        {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}},
        {"type": "array", "minItems": 2, "prefixItems": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        {"anyOf": [NODE, {"allOf": [NODE]}]},
        {**NODE, "properties": {"next": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}}}},
    ],
)
def test_a_schema_whose_values_have_no_end_is_refused(node: object):
    schema = {"properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    assert "so none has an end (at /$defs/node)" in refusal(schema)


@pytest.mark.parametrize(
    "node",
    [
        {**NODE, "required": []},
        {"anyOf": [NODE, {"type": "null"}]},
        {**NODE, "type": ["object", "null"]},
        {"type": "array", "minItems": 1, "prefixItems": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        {"type": "array", "items": {"$ref": "#/$defs/node"}},
        {**NODE, "properties": {"next": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
    ],
)
def test_recursion_that_may_stop_is_fine(node: object):
    normalize_schema({"properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}, param="p")


def test_a_long_chain_of_definitions_is_walked_once():
    chain = {
        f"c{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/c{n + 1}"}}, "required": ["x"]}
        for n in range(4900)
    }
    started_s = time.process_time()
    normalize_schema({"$ref": "#/$defs/c0", "$defs": {**chain, "c4900": {"type": "null"}}}, param="p")
    assert time.process_time() - started_s < 1


def tagged(*tags: object, **more: object) -> list[dict[str, object]]:
    return [{"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"], **more} for tag in tags]


@pytest.mark.parametrize(
    "alternatives",
    [
        tagged("a", "b", "c"),
        tagged(*range(200)),
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        [{"const": "a"}, {"enum": ["b", "c"]}, {"type": "object"}, {"type": ["null", "boolean"]}, {"type": "integer"}],
        [*tagged("a", "b"), {"type": "null"}],
    ],
)
def test_one_of_alternatives_that_exclude_each_other_is_any_of(alternatives: list[object]):
    one, other = tagged("a", "b")
    schema = {"oneOf": alternatives, "$defs": {"a": one, "b": other}}
    normal = normalize_schema(schema, param="p")
    assert isinstance(normal, dict)
    assert "oneOf" not in normal
    assert len(normal["anyOf"]) == len(alternatives)


def test_comparing_alternatives_is_bounded():
    def told_apart_pair_by_pair(index: int) -> dict[str, object]:
        others = {f"p{min(index, k)}_{max(index, k)}": {"const": k < index} for k in range(16) if k != index}
        return {"type": "object", "properties": others, "required": list(others)}

    alternatives = [{"$ref": f"#/$defs/a{k}"} for k in range(16)]
    definitions = {f"a{k}": told_apart_pair_by_pair(k) for k in range(16)}
    normalize_schema({"oneOf": alternatives, "$defs": definitions}, param="p")
    many = {"properties": {f"x{n}": {"oneOf": alternatives} for n in range(200)}, "$defs": definitions}
    started_s = time.process_time()
    assert "too many alternatives in oneOf" in refusal(many)
    assert time.process_time() - started_s < 2


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"const": 1}, {"enum": [2, 1.0]}],
        [{"type": "string"}, {"minimum": 3}],
        [*tagged("a"), {"type": "object"}],
        [{**schema, "required": []} for schema in tagged("a", "b")],
        [{**schema, "type": ["object", "null"]} for schema in tagged("a", "b")],
        [True, {"type": "null"}],
    ],
)
def test_one_of_alternatives_that_may_overlap_is_refused(alternatives: list[object]):
    assert "(at /oneOf)" in refusal({"oneOf": alternatives})
