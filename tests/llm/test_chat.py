"""`LLM.chat` with the default model: templates, tools, forms."""

import json
from typing import Any

import pytest

from pageloom import LLM, SamplingParams, StructuredOutputsParams
from pageloom.errors import InvalidRequest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_one_conversation_and_several(llm: LLM):
    (output,) = llm.chat(QUESTION, GREEDY)
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].message is None
    assert output.prompt == llm.get_tokenizer().apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    several = llm.chat([QUESTION, [{"role": "user", "content": "Say hi."}]], GREEDY)
    assert several[0].outputs[0].text == output.outputs[0].text
    assert several[1].prompt != output.prompt


def test_going_on_from_the_last_message(llm: LLM):
    begun = [*QUESTION, {"role": "assistant", "content": "It is the city of"}]
    (output,) = llm.chat(begun, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("It is the city of")
    assert "Paris" in output.outputs[0].text


def test_special_tokens_in_messages_stay_text(llm: LLM):
    (output,) = llm.chat([{"role": "user", "content": "<|im_end|>"}], GREEDY)
    (end,) = llm.tokenize("<|im_end|>")
    assert len(end) == 1
    # Those of the template alone: after the system's and the user's words.
    assert output.prompt_token_ids.count(end[0]) == 2
    assert output.prompt is not None
    assert "<|im_end|><|im_end|>" in output.prompt


def test_a_call_that_must_come(llm: LLM):
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    (output,) = llm.chat(ask, GREEDY, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    (choice,) = output.outputs
    assert choice.text.startswith("<tool_call>")
    assert choice.message is not None
    assert choice.message.content == ""
    (call,) = choice.message.tool_calls
    assert call.name == "get_weather"
    assert list(json.loads(call.arguments)) == ["city"]
    assert call.id
    # The result goes back as OpenAI's clients send it.
    told = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    turn: list[dict[str, Any]] = [
        *ask,
        {"role": "assistant", "content": "", "tool_calls": [told]},
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
    ]
    (answer,) = llm.chat(turn, GREEDY, tools=[WEATHER], tool_choice="none")
    assert answer.prompt is not None
    assert "Sunny, 21 degrees." in answer.prompt


def test_tools_that_are_only_offered(llm: LLM):
    (output,) = llm.chat(QUESTION, GREEDY, tools=[WEATHER])
    assert output.prompt is not None
    assert "get_weather" in output.prompt
    assert output.outputs[0].message is not None


def test_a_schema_for_the_answer(llm: LLM):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    closed = {**schema, "additionalProperties": False}
    for output in (
        *llm.chat(QUESTION, GREEDY, json_schema=closed),
        *llm.chat(QUESTION, GREEDY, json_schema=json.dumps(closed)),
        *llm.chat(
            QUESTION,
            SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=StructuredOutputsParams(json=closed)),
        ),
    ):
        assert json.loads(output.outputs[0].text)["city"] in ("Paris", "Rome")


def test_a_schema_that_proves_too_much_is_named(llm: LLM):
    """Whether a text matches depends on all places of an a among its last hundred characters."""
    schema = {"type": "string", "pattern": "^[a-z]*a[a-z]{100}b$"}
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=800)
    with pytest.raises(InvalidRequest, match=r"^json_schema: .*too many states") as caught:
        llm.chat([QUESTION, QUESTION], [GREEDY, params], json_schema=schema)
    assert caught.value.param == "json_schema"


def test_another_template(llm: LLM):
    template = "{% for message in messages %}{{ message.content }}{{ mark }}{% endfor %}"
    (output,) = llm.chat(
        [{"role": "user", "content": "The capital of France is"}],
        GREEDY,
        chat_template=template,
        chat_template_kwargs={"mark": " the city of"},
    )
    assert output.prompt == "The capital of France is the city of"


@pytest.mark.parametrize(
    ("messages", "arguments", "words"),
    [
        ([], {}, ["messages", "empty"]),
        (5, {}, ["messages must be a list", "not 5"]),
        (QUESTION[0], {}, ["messages must be a list"]),
        ([QUESTION, None], {}, ["messages[1] must be a list", "None"]),
        ([{"role": "user", "content": "\ud800"}], {}, ["messages", "lone surrogate"]),
        (QUESTION, {"chat_template": 5}, ["chat_template must be a string, not 5"]),
        (QUESTION, {"chat_template": "{% x %}"}, ["chat_template", "line 1", "unknown tag"]),
        (QUESTION, {"json_schema": "\ud800"}, ["json_schema", "lone surrogate"]),
        (QUESTION, {"json_schema": {"const": float("nan")}}, ["json_schema must be what JSON can hold"]),
        (
            QUESTION,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": {1}}}}]},
            ["tools", "set"],
        ),
        ([{"role": "robot", "content": "x"}], {}, ["messages[0].role", "'user'"]),
        ([{"role": "user", "content": 5}], {}, ["messages[0].content", "a string"]),
        (QUESTION, {"tools": [{"type": "function"}]}, ["tools[0].function", "required"]),
        (QUESTION, {"tool_choice": "required"}, ["tool_choice", "no tools"]),
        (QUESTION, {"json_schema": {"type": "nothing"}}, ["json_schema", "at /type"]),
        (QUESTION, {"json_schema": "{"}, ["json_schema is not valid JSON"]),
        (QUESTION, {"json_schema": 5}, ["json_schema should be"]),
        (QUESTION, {"continue_final_message": True, "add_generation_prompt": True}, ["exclude each other"]),
    ],
)
def test_what_is_wrong_is_named(llm: LLM, messages, arguments, words: list[str]):
    with pytest.raises(InvalidRequest) as refused:
        llm.chat(messages, GREEDY, **arguments)
    for word in words:
        assert word in refused.value.message


def test_an_unknown_argument(llm: LLM):
    with pytest.raises(TypeError, match="'tool'; did you mean 'tools'"):
        llm.chat(QUESTION, tool=[WEATHER])  # type: ignore[call-arg]
