"""Tools against the real stack: a small model that is made to call, streamed and whole, and its result back."""

import json
from typing import Any

import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_streamed_and_whole(client: Any, model_name: str, choice: Any):
    fields = {
        "model": model_name, "messages": QUESTION, "tools": [WEATHER], "tool_choice": choice,
        "parallel_tool_calls": False, "temperature": 0, "max_tokens": 80,
    }  # fmt: skip
    whole = client.chat.completions.create(**fields)
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion()
    (same,) = streamed.choices[0].message.tool_calls
    assert (same.function.name, same.function.arguments) == ("get_weather", call.function.arguments)
    assert streamed.choices[0].finish_reason == "tool_calls"
    messages = [
        *QUESTION,
        whole.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and sunny"},
    ]
    answer = client.chat.completions.create(
        model=model_name, messages=messages, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=40
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_free_choice_of_several_samples(client: Any, model_name: str):
    """Whatever it draws: content or calls that follow the schema, with log-probabilities of all tokens."""
    answer = client.chat.completions.create(
        model=model_name, messages=QUESTION, tools=[WEATHER], n=4, temperature=1.0, seed=3, max_tokens=60, logprobs=True
    )
    for choice in answer.choices:
        assert choice.logprobs.content
        for call in choice.message.tool_calls or ():
            assert call.function.name == "get_weather"
            if choice.finish_reason == "tool_calls":
                assert set(json.loads(call.function.arguments)) == {"city", "unit"}
