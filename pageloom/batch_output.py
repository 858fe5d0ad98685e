"""Answers of a batch -> lines of files, each written as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from pageloom.batch_client import BatchAnswer
from pageloom.batch_lines import LineError, answer_line, encoded


class BatchOutput:
    """Whoever stops at any time has whole lines only. The file of errors is opened with the first of them."""

    def __init__(self, answers: BinaryIO, open_errors: Callable[[], BinaryIO]) -> None:
        self._answers = answers
        self._open_errors = open_errors
        self._errors: BinaryIO | None = None
        self.num_failed = 0

    def take(self, number: int, custom_id: str, answer: BatchAnswer) -> None:
        """The answer of line `number`. Raises OSError."""
        if answer.response is None:
            self.refuse(number, LineError("connection_error", answer.failure, custom_id))
            return
        line = answer_line(f"batch_req_{number}", custom_id, response=answer.response)
        if answer.succeeded:
            _write(self._answers, line)
        else:
            self._write_error(line)

    def refuse(self, number: int, error: LineError) -> None:
        """Raises OSError."""
        self._write_error(answer_line(f"batch_req_{number}", error.custom_id, error=error.told(number)))

    def _write_error(self, line: dict[str, Any]) -> None:
        self.num_failed += 1
        if self._errors is None:
            self._errors = self._open_errors()
        _write(self._errors, line)


def _write(file: BinaryIO, line: dict[str, Any]) -> None:
    file.write(encoded(line) + b"\n")
    file.flush()
