"""The answers of one batch -> lines of its output files, and what is counted of them."""

from __future__ import annotations

from typing import Any

from gateway.batches.file_store import OutputFile
from gateway.batches.inner_call import InnerAnswer
from gateway.batches.schemas import StoredBatch
from pageloom.batch_lines import LineError, answer_line, encoded


class AnswerWriter:
    """Writes answers and counts them. On the event loop, for a line goes no further than the system's cache, and so
    no cancellation comes between a line and its count."""

    def __init__(self, batch: StoredBatch, output: OutputFile, errors: OutputFile, done: set[int]) -> None:
        self._batch_id = batch.shown.id
        self._counts = batch.shown.request_counts
        self._usage = batch.shown.usage
        self._output = output
        self._errors = errors
        self._done = done

    def take(self, number: int, custom_id: str, answer: InnerAnswer) -> None:
        response = {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
        line = answer_line(_answer_id(self._batch_id, number), custom_id, response=response)
        self._write(number, line, succeeded=answer.status == 200)
        if answer.status == 200:
            self._usage.add(answer.body)

    def refuse(self, number: int, error: LineError) -> None:
        line = answer_line(_answer_id(self._batch_id, number), error.custom_id, error=error.told(number))
        self._write(number, line, succeeded=False)

    def _write(self, number: int, line: dict[str, Any], *, succeeded: bool) -> None:
        (self._output if succeeded else self._errors).append(encoded(line))
        self._done.add(number)
        if succeeded:
            self._counts.completed += 1
        else:
            self._counts.failed += 1


def line_number(answer_id: str) -> int:
    """Of the line that an answer with this id is for."""
    return int(answer_id.rpartition("_")[2])


def _answer_id(batch_id: str, number: int) -> str:
    return f"{batch_id.replace('batch_', 'batch_req_')}_{number}"
