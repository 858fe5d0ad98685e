"""Of the several ways in which a value fails a field of several types, the error tells the one that matters."""

import pytest
from pydantic import ValidationError

from gateway.errors import invalid_request
from gateway.schemas import CompletionRequest


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
