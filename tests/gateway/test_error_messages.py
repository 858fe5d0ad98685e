"""Of the several ways in which a value fails a field of several types, the error tells the one that matters."""

import pytest
from pydantic import ValidationError

from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest
from pageloom.field_errors import invalid_request


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("stop", [""], "stop must have at least 1 characters"),
        ("stop", 5, "stop must be a string or a list of strings"),
        ("prompt", 5, "prompt must be a string, a list of strings"),
    ],
)
def test_message(field: str, value: object, words: str):
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"model": "m", "prompt": "x", field: value})
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    error = invalid_request(errors)
    assert error.message.startswith(words), error.message
    assert (error.param or "").startswith(field)


@pytest.mark.parametrize(
    ("field", "value", "param", "words"),
    [
        ("chat_template_kwargs", "x", "chat_template_kwargs", "must be an object whose values"),
        (
            "tool_choice",
            "any",
            "tool_choice",
            "must be none, auto, required, or an object that names",
        ),
        ("tool_choice", {"type": "function"}, "tool_choice", "must be none, auto, required, or an object that names"),
        ("messages", [{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "is required"),
    ],
)
def test_message_of_a_chat(field: str, value: object, param: str, words: str):
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user"}], field: value})
    error = invalid_request([{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()])
    assert error.param == param
    assert error.message.startswith(f"{param} {words}")
