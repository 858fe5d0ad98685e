"""Lines of a batch's input, and what is sent of them."""

import io
import json
from typing import Any

import pytest

from pageloom.batch_lines import BATCH_URLS, BatchLine, LineError, LineRequest, count_lines, encoded, read_lines

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}


def lines_of(text: bytes, max_line_bytes: int = 1000) -> list[BatchLine]:
    lines = list(read_lines(io.BytesIO(text), BATCH_URLS, max_line_bytes))
    assert count_lines(io.BytesIO(text), max_line_bytes) == len(lines)
    return lines


def test_line_ends_blank_lines_and_a_byte_order_mark():
    line = json.dumps(GOOD).encode()
    for text in (line, line + b"\n", b"\xef\xbb\xbf" + line + b"\r\n", line + b"\n \n\t\r\n"):
        (read,) = lines_of(text)
        assert read == BatchLine(
            number=1, content=LineRequest(custom_id="a", url="/v1/completions", body={"prompt": "Hi"})
        )
    assert [line.number for line in lines_of(b"\n\n" + line + b"\n\n{\n")] == [3, 5]
    assert lines_of(b"") == lines_of(b"\n\n") == []


@pytest.mark.parametrize("num_bytes", [99, 100, 101, 102, 103, 300, 1000])
def test_a_long_line_is_passed_over(num_bytes: int):
    line = json.dumps(GOOD).encode()
    assert len(line) <= 100
    padded = line + b" " * (num_bytes - len(line) - 1) + b"\n"
    long, short = lines_of(padded + json.dumps({**GOOD, "custom_id": "b"}).encode(), 100)
    assert isinstance(short.content, LineRequest)
    assert short.number == 2
    if num_bytes <= 101:
        # The line's end does not count.
        assert isinstance(long.content, LineRequest)
    else:
        assert isinstance(long.content, LineError)
        assert long.content.message == "the line is longer than 100 bytes"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"custom_id": ""}, "invalid_custom_id", "1 to 512 characters"),
        ({"custom_id": "x" * 513}, "invalid_custom_id", "1 to 512 characters"),
        ({"method": "post"}, "invalid_method", "must be POST, not 'post'"),
        ({"method": None}, "invalid_method", "not absent"),
        ({"url": "/v1/moderations"}, "invalid_url", "/v1/completions or /v1/embeddings"),
        ({"url": ["/v1/completions"]}, "invalid_url", "not ['/v1/completions']"),
        ({"body": "x"}, "invalid_body", "a JSON object"),
        ({"body": {"stream": True}}, "stream_not_supported", "body.stream"),
        ({"body": {"background": True}}, "background_not_supported", "body.background"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], code: str, words: str):
    (line,) = lines_of(json.dumps({**GOOD, **change}).encode())
    assert isinstance(line.content, LineError)
    assert line.content.code == code
    assert words in line.content.message
    assert line.content.told(7)["message"].startswith("line 7: ")


def test_custom_ids_of_the_limit_and_streams_that_are_none():
    (line,) = lines_of(json.dumps({**GOOD, "custom_id": "x" * 512, "body": {"stream": False}}).encode())
    assert isinstance(line.content, LineRequest)


@pytest.mark.parametrize("text", [b"\xff", b"[" * 900, b'{"a": ' * 100, b"1", b'"x"', b"null", b"{'a': 1}"])
def test_garbage_is_told(text: bytes):
    (line,) = lines_of(text)
    assert isinstance(line.content, LineError)
    assert line.content.custom_id is None


@pytest.mark.parametrize(
    "text", ['{"a":"päper 😀"}', '{"a":"\\ud800"}', '{"a":12345678901234567890123}', '{"a":[0.1,1e+22,-0.0,null]}']
)
def test_a_body_goes_on_as_it_came(text: str):
    assert json.loads(encoded(json.loads(text))) == json.loads(text)
    assert len(encoded(json.loads(text))) <= len(text.encode())
