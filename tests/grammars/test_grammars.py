"""What the grammars allow that requests are turned into."""

import json

import pytest

from pageloom.errors import InvalidRequest
from pageloom.grammars import gbnf
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle, Tag
from tests.support.grammar_text import accepts, error_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_json_that_fits_its_schema():
    for given in (PERSON, json.dumps(PERSON)):
        grammar = grammars.json_schema(given, param="p")
        assert accepts(grammar, '{"name":"A","age":3}')
        assert accepts(grammar, '{\n  "name": "A",\n  "age": 3\n}')
        assert not accepts(grammar, '{"name":"A"}')
        assert not accepts(grammar, '{"name":"A","age":-1}')
        assert not accepts(grammar, '{"name":"A","age":3,"x":1}')


@pytest.mark.parametrize(
    ("style", "space", "allowed"),
    [
        (grammars.DEFAULT_STYLE, " " * 8, True),
        (grammars.DEFAULT_STYLE, "\n\t\r " * 2, True),
        (grammars.DEFAULT_STYLE, " " * 9, False),
        (JsonStyle(whitespace=""), " ", False),
        (JsonStyle(whitespace=""), "", True),
    ],
)
def test_white_space_is_bounded(style: JsonStyle, space: str, allowed: bool):
    assert accepts(grammars.json_object(style=style), f'{{{space}"a"{space}:{space}1{space}}}') is allowed


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("[ ]?", 1), (r"\n*", 8), (r"[ \n]{2,}", 8), (r"\s+", 8), (" {0,3}", 3), (r"[\x20\x0A]*", 8), ("", 0)],
)
def test_white_space_as_the_request_wants_it(pattern: str, most: int):
    style = grammars.json_style(compact=False, whitespace_pattern=pattern, closed_objects=False)
    space = "\n" if pattern == r"\n*" else " "
    grammar = grammars.json_schema({"type": "array"}, param="p", style=style)
    assert accepts(grammar, f"[{space * most}]")
    assert not accepts(grammar, f"[{space * (most + 1)}]")


@pytest.mark.parametrize("pattern", [".*", "a", r"\d", r"[^ ]", "[ a]", "( )", " | ", " {1000}", "[ "])
def test_white_space_that_would_break_json_is_refused(pattern: str):
    with pytest.raises(InvalidRequest, match="regular expression of white space"):
        grammars.json_style(compact=False, whitespace_pattern=pattern, closed_objects=False)


def test_closed_objects():
    open_, closed = ({"type": "object", "properties": {"a": {}}}, JsonStyle(closed_objects=True))
    assert accepts(grammars.json_schema(open_, param="p"), '{"a":1,"b":1}')
    assert not accepts(grammars.json_schema(open_, param="p", style=closed), '{"a":1,"b":1}')


@pytest.mark.parametrize("text", ["{}", '{"a": [1, {"b": null}]}'])
def test_any_json_object(text: str):
    assert accepts(grammars.json_object(), text)
    assert not accepts(grammars.json_object(), "[]")
    assert not accepts(grammars.json_object(), text + " ")


@pytest.mark.parametrize(
    ("pattern", "text", "allowed"),
    [
        (r"^\d{3}-[a-z]+$", "123-abc", True),
        (r"\d{3}-[a-z]+", "123-abc!", False),
        (r"a/b\/c", "a/b/c", True),
        (r"\\/", "\\/", True),
        (r"a\$", "a$", True),
        (r"a\\$", "a\\", True),
        ("a|bc", "bc", True),
        ("a|bc", "ac", False),
        ("x*", "", True),
        ('"[^"]*"', '"é日"', True),
        ("(?i)yes", "YES", True),
    ],
)
def test_a_regular_expression_matches_the_whole(pattern: str, text: str, allowed: bool):
    assert accepts(grammars.regex(pattern), text) is allowed


@pytest.mark.parametrize("texts", [["yes", "no"], ["a", "ab", "abc"], ['say "hi"\n', "\\", "日本", "\x7f", "/x/"]])
def test_one_of_several_texts(texts: list[str]):
    grammar = grammars.choice([*texts, texts[0]])
    assert all(accepts(grammar, text) for text in texts)
    assert not any(accepts(grammar, text + "!") or accepts(grammar, text[:-1] + "?") for text in texts)


TAGS = [
    Tag(begin="<fn=add>", schema={"type": "array", "items": {"type": "integer"}}, end="</fn>"),
    Tag(begin="<fn=say>", schema={"type": "string"}, end="</fn>"),
    Tag(begin="[any]", schema=None, end=""),
]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("just text <f", True),
        ("", True),
        ('a <fn=add>[1, 2]</fn> b <fn=say>"x"</fn>', True),
        ("[any]null", True),
        ("<fn=add>[1]", False),
        ('<fn=add>["x"]</fn>', False),
        ("<fn=other>", False),
        ("<fn=", False),
    ],
)
def test_tags_in_free_text(text: str, allowed: bool):
    assert accepts(grammars.structural_tag(TAGS, ["<fn=", "[any]"]), text) is allowed


def test_special_tokens_in_tags_are_tokens():
    tag = Tag(begin="<|call|>f", schema={}, end="x<|end|>")
    grammar = grammars.structural_tag([tag], ["<|call|>"], special_tokens={"<|call|>": 5, "<|end|>": 6, "<|e": 7})
    lark = json.loads(grammar)["grammars"][0]["lark_grammar"]
    assert 'tags_0: TEXT <[5]> ("f" %json ' in lark
    assert lark.endswith('"x" <[6]>)')


def test_tags_and_triggers_belong_together():
    with pytest.raises(InvalidRequest, match=r"p: no structure begins with the trigger '\[x'"):
        grammars.structural_tag(TAGS, ["<fn=", "[any]", "[x"], param="p")
    with pytest.raises(InvalidRequest, match=r"p: no trigger is how '\[any\]' begins"):
        grammars.structural_tag(TAGS, ["<fn="], param="p")
    with pytest.raises(InvalidRequest, match=r"^p\.structures\[0\]\.schema: the keyword 'not'") as caught:
        grammars.structural_tag([Tag(begin="<", schema={"not": {}}, end="")], ["<"], param="p")
    assert caught.value.param == "p.structures[0].schema"


ARITHMETIC = """
# llama.cpp's notation
root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]{1,3} ws
ws    ::= [ \\t]* | 
"""


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("a=1\n", True), ("(1 +b2)*3=7\nx=x\n", True), ("1234=1\n", False), ("(1=1\n", False), ("a=1", False)],
)
def test_the_notation_of_llama_cpp(text: str, allowed: bool):
    assert gbnf.is_gbnf(ARITHMETIC)
    assert accepts(grammars.lark(gbnf.to_lark(ARITHMETIC, param="p")), text) is allowed


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (r'root ::= "\x41\u00e9\U0001F600\"\\"', 'Aé😀"\\'),
        (r"root ::= [\]\-a^]{4}", "]-a^"),
        ("root ::= [^a-c]", "d"),
        ("root ::= [a-]{2}", "-a"),
        ("root ::= . .", "\n日"),
        ('root ::= "a" | ', ""),
        ('root ::= ("a" |) "b"', "b"),
        ('root ::= "a" (\n "b" # comment\n | "c")', "ac"),
        ('root ::= "[" (root ("," root)*)? "]"', "[[],[[]]]"),
        ('root ::= Sub-rule "x"{2,}\nSub-rule ::= "a"', "axxx"),
        ("root ::= root-2\nroot-2 ::= [0-9]{2}", "42"),
    ],
)
def test_more_of_that_notation(rule: str, text: str):
    assert accepts(grammars.lark(gbnf.to_lark(rule, param="p")), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('root ::= "a', "p, line 1: '\"a' is not understood"),
        ('x ::= "a"\nroot ::= y', "p: the rule 'root' uses 'y', which is not defined"),
        ('x ::= "a"', "p has no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "p, line 2: 'root' is defined twice"),
        ('"a" ::= root', "p, line 1: a rule such as root"),
        (r'root ::= "\q"', r"the escape '\\\\q' is not known"),
        ("root ::= []", "is empty"),
    ],
)
def test_mistakes_in_that_notation_are_named(text: str, message: str):
    with pytest.raises(InvalidRequest) as caught:
        gbnf.to_lark(text, param="p")
    assert message.replace("\\\\\\\\", "\\\\") in caught.value.message


def test_lark_is_left_alone():
    text = 'start: "a" B\nB: /b::=+/'
    assert not gbnf.is_gbnf(text)
    assert accepts(grammars.lark(text), "ab::=")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: grammars.regex(""), "1 to 16384 characters"),
        (lambda: grammars.regex("a" * 16_385), "1 to 16384 characters"),
        (lambda: grammars.choice([]), "none of them empty"),
        (lambda: grammars.choice(["a", ""]), "none of them empty"),
        (lambda: grammars.lark(" \n"), "grammar is empty"),
        (lambda: grammars.lark("a" * 2**18), "larger than 262144 bytes"),
        (lambda: grammars.json_schema('{"a":', param="p"), "p is not valid JSON"),
        (lambda: grammars.json_schema("[" * 65 + "]" * 65, param="p"), "nested deeper than 64 levels"),
        (lambda: grammars.json_schema(False, param="p"), "no value satisfies"),
        (lambda: grammars.json_schema("3", param="p"), "a schema must be an object or a boolean, not a number"),
    ],
)
def test_what_cannot_be_a_grammar(build, message: str):
    with pytest.raises(InvalidRequest, match=message):
        build()


def test_regular_expressions_at_their_largest_compile():
    assert not error_of(grammars.regex("ab" * 8192))
