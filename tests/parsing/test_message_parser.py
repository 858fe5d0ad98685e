"""Tool calls and thinking in a model's text: what each family writes, cut into pieces in every way."""

import json
import random
import time
from typing import Any

import pytest

from pageloom.parsing.message_parser import MessageDelta, MessageFormat, MessageParser
from pageloom.parsing.reasoning import DEEPSEEK_R1, GEMMA_THOUGHT, THINK
from pageloom.parsing.tool_formats import TOOL_FORMATS

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}}},
    "now": {},
    "a.b-c": {},
}
PARIS = ("weather", '{"city": "Paris"}')
NOW = ("now", "{}")
TRICKY = '{"text": "a } ] </tool_call> \\" {\\n[TOOL_CALLS] \\\\", "n": [1, {"x": null}], "é": "😀"}'

# Format, text, content, calls.
CASES = [
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name":"now","arguments":null}</tool_call>', "",
        [NOW, NOW]),
    ("hermes", 'Let me see. \n<tool_call>{"name": "now"}</tool_call> Done.', "Let me see. Done.", [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}\n{"name": "now", "arguments": {}}', "", [NOW, NOW]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", [PARIS]),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {TRICKY}}}</tool_call>', "", [("weather", TRICKY)]),
    ("hermes", '<tool_call>{"id": {"a": "}"}, "name": "\\u006eow", "n": 1, "arguments": {}}</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
    ("hermes", '<tool_call>```json\n{"name": "now", "arguments": {}}\n```</tool_call>', "", [NOW]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Par', "", [("weather", '{"city": "Par')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}} oops </tool_call> x', " x", [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}, oops }</tool_call>', "", [NOW]),
    ("hermes", "Use <tool_call> to call.\n", "Use <tool_call> to call.\n", []),
    ("hermes", '<tool_call>{"name": "now"', '<tool_call>{"name": "now"', [("now", "")]),
    ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
    ("hermes", "<tool_call></tool_call>", "<tool_call></tool_call>", []),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    ("hermes", "a <tool_cal", "a <tool_cal", []),
    ("hermes", '{"name": "now", "arguments": {}}', '{"name": "now", "arguments": {}}', []),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "",
        [PARIS],
    ),
    ("qwen3_coder", "Hm. <tool_call><function=now></function></tool_call> Done.", "Hm. Done.", [NOW]),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\na \"b\"\n\n</parameter>\n"
        "<parameter=days>\n 3 \n</parameter>\n"
        '<parameter=more>\n{"a": [true]}\n</parameter>\n<parameter=other>\n5</parameter>\n</function>\n</tool_call>',
        "",
        [("weather", '{"city": "a \\"b\\"\\n", "days": 3, "more": {"a": [true]}, "other": "5"}')],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=days>\nthree\n</parameter><parameter=more>None</parameter></function>"
        "<function=now></function></tool_call>",
        "",
        [("weather", '{"days": "three", "more": null}'), NOW],
    ),
    # The first tag is left out at times, and the last ones.
    ("qwen3_coder", "<function=now>\n</function> Done.", " Done.", [NOW]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>Paris</parameter></tool_call>", "", [PARIS]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>Par", "", [("weather", '{"city": "Par')]),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>a </parameter <", "",
        [("weather", '{"city": "a </parameter ')]),
    ("qwen3_coder", '<tool_call>{"name": "now"}</tool_call>', '<tool_call>{"name": "now"}</tool_call>', []),
    ("qwen3_coder", "Use <function= to call", "Use <function= to call", []),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("llama3_json", '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now"}', "", [NOW, NOW]),
    ("llama3_json", '[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]', "", [NOW, NOW]),
    ("llama3_json", '<|python_start|>{"name": "now", "parameters": {}}<|python_end|>', "", [NOW]),
    ("llama3_json", '<|python_start|>I see<|python_end|>{"name": "now"}', 'I see{"name": "now"}', []),
    ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    ("llama3_json", '{"name": "now", "parameters": {}} There.', " There.", [NOW]),
    ("llama3_json", "[1, 2]", "[1, 2]", []),
    ("llama3_json", '  {"a": {"name": "now"}}', '  {"a": {"name": "now"}}', []),
    ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "123456789"}]', "", [PARIS]),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]', "", [NOW, NOW]),
    ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', "", [PARIS, NOW]),
    ("mistral", 'Hm [TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}', "Hm", [PARIS]),
    ("mistral", "[TOOL_CALLS] two words {", " two words {", []),
    ("gemma", '<|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|>', "", [PARIS]),
    ("gemma", "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>", "", [NOW, NOW]),
    (
        "gemma",
        '<|tool_call>call:a.b-c{l:[1,-2.5e3,<|"|>x"}y<|"|>,[]],o:{k:true,<|"|>q<|"|>:None},w:New York,"j":"\\n"}'
        "<tool_call|>",
        "",
        [("a.b-c", '{"l": [1, -2.5e3, "x\\"}y", []], "o": {"k": true, "q": null}, "w": "New York", "j": "\\n"}')],
    ),
    ("functiongemma", "<start_function_call>call:weather{city:<escape>Paris<escape>}<end_function_call>", "", [PARIS]),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "",
        [PARIS, NOW],
    ),
    ("jamba", '<tool_calls>[\n{"name": "now", "arguments": {}},\n{"name": "now"}\n]</tool_calls>', "", [NOW, NOW]),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [PARIS, NOW],
    ),
    ("json", '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```', "", [PARIS]),
    ("json", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("json", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "", [NOW]),
    ("json", '```json\n{"name": "Ann"}\n```', '```json\n{"name": "Ann"}\n```', []),
    ("json", "```python\nprint({})\n```", "```python\nprint({})\n```", []),
    ("json", "Plain words.", "Plain words.", []),
    ("json", '{"type": "function", "id": 1, "name": "now", "arguments": {}}', "", [NOW]),
    ("json", '{"title": 1, "name": "now", "arguments": {}}', '{"title": 1, "name": "now", "arguments": {}}', []),
    ("json", '{"name": "now", "title": 1, "arguments": {}}', "", [NOW]),
    ("json", '{"title": {"name": "now"}, "arguments": {}}', '{"title": {"name": "now"}, "arguments": {}}', []),
]  # fmt: skip


def tool_format(name: str, **fields: object) -> MessageFormat:
    hidden = frozenset({"<|python_start|>", "<|python_end|>", "<|python_tag|>", "[TOOL_CALLS]"})
    return MessageFormat(tools=TOOL_FORMATS[name], tool_parameters=TOOLS, hidden_markers=hidden, **fields)  # type: ignore


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_calls_of_each_family_however_they_are_cut(name: str, text: str, content: str, calls: list[tuple[str, str]]):
    if text == '<tool_call>{"name": "now"':
        # The name is known, so it counts.
        content = ""
    rng = random.Random(text)
    whole = read(tool_format(name), [text])
    assert whole == (content, "", calls)
    for pieces in (list(text), *(cut(text, rng) for _ in range(20))):
        assert read(tool_format(name), pieces) == whole


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_a_format_writes_it_reads(name: str):
    assert read(tool_format(name), [TOOL_FORMATS[name].write([PARIS, NOW])]) == ("", "", [PARIS, NOW])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_noise_is_never_lost_or_fatal(name: str):
    """Without a known name everything is content, but for marks that are special tokens."""
    rng = random.Random(name)
    pieces = [
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ":",
        ",",
        " ",
        "\n",
        "x",
        "call:",
        "```",
        "json",
        *TOOL_FORMATS[name].markers,
    ]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 30)))
        whole = read(tool_format(name), [text])
        assert read(tool_format(name), cut(text, rng)) == whole, text
        if not whole[2] and not tool_format(name).hidden_markers & set(TOOL_FORMATS[name].markers):
            assert whole[0] == text


def test_texts_in_tags_stream():
    parser = MessageParser(tool_format("qwen3_coder"))
    assert parser.push("<tool_call>\n<function=weather>").tool_calls[0].name == "weather"
    pieces = ("\n<parameter=city>\nPar", "is\n", "</para", "meter>\n</function>")
    said = ["".join(delta.arguments for delta in parser.push(piece).tool_calls) for piece in pieces]
    assert said == ['{"city": "Par', "is", "", '"}']


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "say \\"hi\\"\\n\\u00e9 \\ud83d\\ude00"}', 'say "hi"\né 😀'),
        ('{"text" : "x"}', "x"),
        ('{"input": ""}', ""),
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "\\ud83d, \\x"}', "\\ud83d, \\x"),
        ('{"' + "k" * 300 + '": "x"}', '{"' + "k" * 300 + '": "x"}'),
    ],
)
def test_the_input_of_a_custom_tool_however_it_is_cut(arguments: str, text: str):
    written = TOOL_FORMATS["hermes"].write([("now", arguments), ("now", '{"input": "2"}'), PARIS])
    message_format = tool_format("hermes", custom_tools=frozenset({"now"}))
    rng = random.Random(arguments)
    for pieces in ([written], list(written), *(cut(written, rng) for _ in range(20))):
        assert read(message_format, pieces) == ("", "", [("now", text), ("now", "2"), PARIS])


def test_arguments_stream():
    parser = MessageParser(tool_format("hermes"))
    assert parser.push('<tool_call>{"name": "weather", "argum').tool_calls[0].name == "weather"
    assert [parser.push(piece).tool_calls for piece in ('ents": ', " ")] == [(), ()]
    first, second = parser.push('{"city"').tool_calls, parser.push(': "Pa').tool_calls
    assert (first[0].arguments, second[0].arguments) == ('{"city"', ': "Pa')
    assert (first[0].id, first[0].name, first[0].index) == (None, None, 0)


def test_json_that_is_content_streams():
    parser = MessageParser(tool_format("json"))
    assert parser.push('{"title": ').content == '{"title": '.rstrip()
    assert parser.push('"A lo').content == ' "A lo'


def test_a_single_call_ends_the_answer():
    calls = '<tool_call>{"name": "now"}</tool_call>' * 2
    parser = MessageParser(tool_format("hermes", single_call=True))
    assert len(parser.push(calls).tool_calls) == 1
    assert parser.ended
    assert parser.finish() == MessageDelta()


def test_ids_are_distinct_and_mistral_s_are_short():
    for name, length in (("hermes", 29), ("mistral", 9)):
        calls = MessageParser(tool_format(name)).push(TOOL_FORMATS[name].write([PARIS, NOW])).tool_calls
        ids = [call.id for call in calls]
        assert [len(call_id or "") for call_id in ids] == [length, length]
        assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("reasoning", "is_open", "text", "expected"),
    [
        (THINK, False, "<think>\nHm.\n</think>\n\nYes.", ("Yes.", "Hm.")),
        (THINK, False, " \n<think>Hm. </think> Yes. ", ("Yes. ", "Hm.")),
        (THINK, True, "\nHm.\n\nSo.\n</think>\n\nYes.", ("Yes.", "Hm.\n\nSo.")),
        (THINK, True, "Hm. </thin", ("", "Hm. </thin")),
        (THINK, False, "Yes <think>no</think>", ("Yes <think>no</think>", "")),
        (THINK, False, " <thin", (" <thin", "")),
        (THINK, False, "<think></think>Yes", ("Yes", "")),
        (THINK, False, "Yes", ("Yes", "")),
        (THINK, True, "", ("", "")),
        (DEEPSEEK_R1, True, "Hm.</think>Yes", ("Yes", "Hm.")),
        (GEMMA_THOUGHT, False, "<|channel>thought\nHm.<channel|>Yes", ("Yes", "Hm.")),
    ],
)
def test_thinking_however_it_is_cut(reasoning, is_open: bool, text: str, expected: tuple[str, str]):
    message_format = MessageFormat(reasoning=reasoning, starts_in_reasoning=is_open)
    rng = random.Random(text)
    for pieces in ([text], list(text), *(cut(text, rng) for _ in range(10))):
        assert read(message_format, pieces)[:2] == expected


def test_thinking_then_calls():
    text = '<think>I call <tool_call>{"name": "now"}</tool_call></think>\n<tool_call>{"name": "now"}</tool_call>'
    for shown in (True, False):
        message_format = tool_format("hermes", reasoning=THINK, include_reasoning=shown)
        for pieces in ([text], list(text)):
            thought = 'I call <tool_call>{"name": "now"}</tool_call>' if shown else ""
            assert read(message_format, pieces) == ("", thought, [NOW])


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call><function=now><parameter=a>b\n</parameter></function></tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": "b"}}</tool_call>',
        "<tool_call>",
        '<tool_call>{"a":"',
        " ",
        "{",
        "a b\n",
    ],
)
def test_time_is_linear(unit: str):
    def seconds(repeats: int) -> float:
        pieces = [unit] * repeats
        start = time.process_time()
        read(tool_format("qwen3_coder" if "<function" in unit else "hermes"), pieces)
        return time.process_time() - start

    seconds(100)
    # Quadratic would be 256 times as long.
    assert min(seconds(8000) for _ in range(2)) < 64 * min(seconds(500) for _ in range(3))


def read(message_format: MessageFormat, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, thinking and calls of a whole text; what streams is what adds up to them."""
    parser = message_format.new_parser()
    deltas = [*(parser.push(piece) for piece in pieces), parser.finish()]
    calls: dict[int, list[str]] = {}
    names: list[str] = []
    for delta in deltas:
        for call in delta.tool_calls:
            assert (call.name is None) == (call.id is None)
            if call.name is not None:
                assert call.index == len(names)
                names.append(call.name)
            calls.setdefault(call.index, []).append(call.arguments)
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        [(name, "".join(calls[index])) for index, name in enumerate(names)],
    )


def cut(text: str, rng: random.Random) -> list[str]:
    pieces = []
    while text:
        size = rng.randrange(1, 8)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def test_the_expected_arguments_are_json():
    for _, _, _, calls in CASES:
        for _, arguments in calls:
            if arguments and arguments[-1] == "}":
                json.loads(arguments)
