"""One line of a batch's input, as OpenAI's batch files have it -> the request it asks for, or what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

BATCH_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_CUSTOM_ID_CHARS = 512
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What one answer in a file cannot be.
_NOT_IN_A_BATCH = ("stream", "background")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequest:
    """`custom_id` is unique in its batch. `body` may be wrong; whoever serves `url` says so."""

    custom_id: str
    url: str
    body: dict[str, Any]


class LineError(Exception):
    """A line asks for nothing that can be sent; `custom_id` if it has a usable one."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id

    def told(self, line_number: int) -> dict[str, Any]:
        """As the error of an answer."""
        return {"code": self.code, "message": f"line {line_number}: {self.message}", "line": line_number}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """`number` counts from 1, blank lines too."""

    number: int
    content: LineRequest | LineError


def read_lines(source: BinaryIO, urls: Collection[str], max_line_bytes: int) -> Iterator[BatchLine]:
    """The lines that are not blank. Of those with the same custom_id the first counts."""
    first_with: dict[str, int] = {}
    for number, text in _numbered(source, max_line_bytes):
        try:
            if text is None:
                raise LineError("line_too_long", f"the line is longer than {max_line_bytes} bytes")
            request = _parse(text, urls)
            if (first := first_with.setdefault(request.custom_id, number)) != number:
                message = f"custom_id {request.custom_id!r} is that of line {first} already"
                raise LineError("duplicate_custom_id", message, request.custom_id)
            yield BatchLine(number=number, content=request)
        except LineError as error:
            yield BatchLine(number=number, content=error)


def answer_line(
    answer_id: str,
    custom_id: str | None,
    *,
    response: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One line of an output or error file. `response` has status_code, request_id and body."""
    return {"id": answer_id, "custom_id": custom_id, "response": response, "error": error}


def encoded(value: object) -> bytes:
    """JSON as it came: whoever reads it judges numbers and half surrogate pairs, which some encoders refuse."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def count_lines(source: BinaryIO, max_line_bytes: int) -> int:
    """So many `read_lines` would give."""
    return sum(1 for _ in _numbered(source, max_line_bytes))


def _numbered(source: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines that are not blank, with their numbers; None for one that is too long."""
    number = 0
    while piece := source.readline(max_line_bytes + 1):
        number += 1
        text: bytes | None = piece
        while not piece.endswith(b"\n") and (piece := source.readline(max_line_bytes + 1)):
            text = None
        if number == 1 and text is not None:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        if text is None or text.strip():
            yield number, text


def _parse(text: bytes, urls: Collection[str]) -> LineRequest:
    try:
        line = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise LineError("invalid_json", f"the line is not valid JSON: {reason}") from None
    if not isinstance(line, dict):
        raise LineError("invalid_line", "the line must be a JSON object with custom_id, method, url and body")
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        message = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        raise LineError("invalid_custom_id", message)
    _check(line, urls, custom_id)
    return LineRequest(custom_id=custom_id, url=line["url"], body=line["body"])


def _check(line: dict[str, Any], urls: Collection[str], custom_id: str) -> None:
    if line.get("method") != "POST":
        raise LineError("invalid_method", f"method must be POST, not {_shown(line.get('method'))}", custom_id)
    if line.get("url") not in urls:
        raise LineError("invalid_url", f"url must be {' or '.join(urls)}, not {_shown(line.get('url'))}", custom_id)
    body = line.get("body")
    if not isinstance(body, dict):
        raise LineError("invalid_body", "body must be a JSON object", custom_id)
    for field in _NOT_IN_A_BATCH:
        if body.get(field) is True:
            raise LineError(f"{field}_not_supported", f"body.{field} must not be true in a batch", custom_id)


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)[:80]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
