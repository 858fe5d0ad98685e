"""What the trees of tags allow that xgrammar and vLLM describe structural tags with."""

from typing import Any

import pytest

from pageloom.errors import InvalidRequest
from pageloom.grammars.tag_format import format_grammar
from tests.support.grammar_text import accepts

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
CALL = {"type": "tag", "begin": "<a>", "content": INTEGER, "end": "</a>"}
OTHER = {"type": "tag", "begin": "<b>", "content": {"type": "regex", "pattern": "[a-z]+"}, "end": "</b>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<a", "<b"], "tags": [CALL, OTHER]}
THINKING = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}


@pytest.mark.parametrize(
    ("wanted", "allowed", "forbidden"),
    [
        ({"type": "const_string", "value": 'a"b'}, ['a"b'], ["a", ""]),
        (INTEGER, ["-3"], ["x", "1.5"]),
        ({"type": "regex", "pattern": "^a/b+$"}, ["a/bb"], ["a/"]),
        ({"type": "any_text"}, ["", "any <a>\n"], []),
        (CALL, ["<a>1</a>"], ["<a>x</a>", "1"]),
        ({**CALL, "end": ["</a>", "!"]}, ["<a>1</a>", "<a>1!"], ["<a>1"]),
        (THINKING, ["<think></think>", "<think>so < </think>"], ["<think>so", "<think></think> "]),
        ({"type": "or", "elements": [CALL, OTHER]}, ["<a>1</a>", "<b>x</b>"], ["<b>1</b>"]),
        (
            {"type": "sequence", "elements": [THINKING, {"type": "const_string", "value": "\n"}, INTEGER]},
            ["<think>a</think>\n12"],
            ["12", "<think>a</think>12"],
        ),
        (TRIGGERED, ["", "text", "x <a>1</a> y <b>z</b>", "<a>1</a>"], ["<a", "<a>x</a>", "<b>"]),
        ({**TRIGGERED, "at_least_one": True}, ["x <a>1</a> y"], ["", "text"]),
        ({**TRIGGERED, "stop_after_first": True}, ["text", "x<a>1</a>"], ["<a>1</a> y"]),
        ({**TRIGGERED, "stop_after_first": True, "at_least_one": True}, ["x<a>1</a>"], ["text"]),
        (
            {"type": "tag", "begin": "[", "content": TRIGGERED, "end": "]"},
            ["[]", "[x<a>1</a>y]"],
            ["[<a>1</a>", "[x]y"],
        ),
        (
            {"type": "tags_with_separator", "tags": [CALL, OTHER], "separator": ", "},
            ["", "<a>1</a>", "<a>1</a>, <b>x</b>, <a>2</a>"],
            ["<a>1</a><b>x</b>", "<a>1</a>, "],
        ),
        (
            {
                "type": "tags_with_separator", "tags": [CALL], "separator": ";", "at_least_one": True,
                "stop_after_first": True,
            },
            ["<a>1</a>"],
            ["", "<a>1</a>;<a>1</a>"],
        ),
    ],
)  # fmt: skip
def test_a_tree_of_tags(wanted: dict[str, Any], allowed: list[str], forbidden: list[str]):
    grammar = format_grammar(wanted, param="p")
    assert {text: accepts(grammar, text) for text in [*allowed, *forbidden]} == {
        **dict.fromkeys(allowed, True),
        **dict.fromkeys(forbidden, False),
    }


def test_special_tokens_end_free_text_as_tokens():
    tag = {"type": "tag", "begin": "<|a|>", "content": {"type": "any_text"}, "end": "<|b|>"}
    assert "start: <[7]> (TEXT <[9]>)" in format_grammar(tag, param="p", special_tokens={"<|a|>": 7, "<|b|>": 9})


def deep(levels: int) -> dict[str, Any]:
    return {"type": "sequence", "elements": [deep(levels - 1)]} if levels else INTEGER


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "qwen_xml_parameter"}, "p"),
        ("text", "p"),
        ({"type": "const_string"}, "p.value"),
        ({"type": "json_schema"}, "p.json_schema"),
        ({"type": "json_schema", "json_schema": {"not": {}}}, "p.json_schema"),
        ({**INTEGER, "style": "qwen_xml"}, "p.style"),
        ({"type": "any_text", "excludes": ["a"]}, "p.excludes"),
        ({"type": "sequence", "elements": []}, "p.elements"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, INTEGER]}, "p.elements[0]"),
        ({"type": "or", "elements": [INTEGER, 3]}, "p.elements[1]"),
        ({**CALL, "content": None}, "p.content"),
        ({**CALL, "end": [1]}, "p.end"),
        ({**TRIGGERED, "triggers": ["<a"]}, "p.tags[1].begin"),
        ({**TRIGGERED, "triggers": [""]}, "p.triggers"),
        ({**TRIGGERED, "tags": [3]}, "p.tags[0].begin"),
        ({"type": "tags_with_separator", "tags": [CALL]}, "p.separator"),
        (deep(40), "p" + ".elements[0]" * 33),
        ({"type": "or", "elements": [INTEGER] * 1000}, "p.elements[999]"),
    ],
)
def test_what_is_not_accepted_is_named(wanted: object, param: str):
    with pytest.raises(InvalidRequest) as caught:
        format_grammar(wanted, param="p")
    assert caught.value.param == param
