"""Deltas -> server-sent events in OpenAI's chunk shapes. Pure. What all chunks of an answer share is encoded once."""

from __future__ import annotations

import time
from collections.abc import Mapping

import orjson
from pydantic import BaseModel

from gateway.choice import ChoiceDelta
from gateway.errors import error_body
from gateway.logprobs import chat_logprobs, completion_logprobs
from gateway.message_deltas import reasoning_delta, tool_calls_delta
from gateway.schemas import GenerationRequest, StreamOptions
from gateway.token_counts import TokenCounts
from pageloom.errors import PageloomError
from pageloom.tokenizer import Tokenizer

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_NULL = b"null"


class ChunkFrame:
    """What surrounds the choices of each chunk. With `include_usage` every chunk has the key `usage`:
    null, or the running total if it is `continuous`."""

    __slots__ = ("_head", "include_usage", "is_continuous")

    def __init__(self, body: GenerationRequest, answer_id: str, kind: str) -> None:
        options = body.stream_options or StreamOptions()
        shared = {"id": answer_id, "object": kind, "created": int(time.time()), "model": body.model}
        self._head = b"data: " + orjson.dumps(shared)[:-1] + b',"choices":['
        self.is_continuous = bool(options.continuous_usage_stats)
        self.include_usage = bool(options.include_usage)

    def chunk(self, choice: bytes, counts: TokenCounts | None = None) -> bytes:
        """`counts` are those so far."""
        if not self.include_usage:
            return self._head + choice + b"]}\n\n"
        shown = counts.to_json() if counts is not None and self.is_continuous else _NULL
        return self._head + choice + b'],"usage":' + shown + b"}\n\n"

    def end(self, counts: TokenCounts) -> bytes:
        """The usage chunk, if it was asked for, and the end mark."""
        if not self.include_usage:
            return DONE
        return self._head + b'],"usage":' + counts.to_json() + b"}\n\n" + DONE


class _ChunkEncoder:
    """What the two `stream.StreamEncoder`s of chunks have in common."""

    def __init__(self, frame: ChunkFrame, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._frame = frame
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs

    @property
    def wants_counts(self) -> bool:
        return self._frame.include_usage and self._frame.is_continuous

    def end(self, counts: TokenCounts) -> bytes:
        return self._frame.end(counts)

    def fail(self, error: PageloomError) -> bytes:
        """No [DONE] follows it."""
        return b"data: " + orjson.dumps(error_body(error)) + b"\n\n"


class ChatChunkEncoder(_ChunkEncoder):
    """The role comes once per choice, before its text; the finish reason in a last chunk of its own."""

    def __init__(self, frame: ChunkFrame, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        super().__init__(frame, tokenizer, with_logprobs=with_logprobs)
        self._begun: set[int] = set()

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        events = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            events = self._chunk(delta.index, b'{"role":"assistant","content":""}', counts)
        if delta.reasoning:
            events += self._chunk(delta.index, reasoning_delta(delta.reasoning), counts)
        if delta.text or delta.scored:
            logprobs = _dump(chat_logprobs(delta.scored, self._tokenizer)) if self._with_logprobs else _NULL
            events += self._chunk(delta.index, b'{"content":' + orjson.dumps(delta.text) + b"}", counts, logprobs)
        if delta.tool_calls:
            events += self._chunk(delta.index, tool_calls_delta(delta.tool_calls), counts)
        if delta.finish is not None:
            events += self._chunk(delta.index, b"{}", counts, finish=_finish(delta))
        return events

    def _chunk(
        self,
        index: int,
        delta: bytes,
        counts: TokenCounts | None,
        logprobs: bytes = _NULL,
        finish: bytes = b'"finish_reason":null',
    ) -> bytes:
        return self._frame.chunk(b'{"index":%d,"delta":%b,"logprobs":%b,%b}' % (index, delta, logprobs, finish), counts)


class CompletionChunkEncoder(_ChunkEncoder):
    """`echoes` holds, per choice, the text to send before the choice's own."""

    def __init__(
        self, frame: ChunkFrame, tokenizer: Tokenizer, *, with_logprobs: bool, echoes: Mapping[int, str]
    ) -> None:
        super().__init__(frame, tokenizer, with_logprobs=with_logprobs)
        self._echoes = dict(echoes)

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        text = self._echoes.pop(delta.index, "") + delta.text
        if not text and not delta.scored and not delta.echoed and delta.finish is None:
            return b""
        logprobs = _NULL
        if self._with_logprobs:
            logprobs = _dump(completion_logprobs(delta.scored, self._tokenizer, delta.echoed))
        choice = b'{"index":%d,"text":%b,"logprobs":%b,%b}' % (
            delta.index,
            orjson.dumps(text),
            logprobs,
            _finish(delta),
        )
        return self._frame.chunk(choice, counts)


def _finish(delta: ChoiceDelta) -> bytes:
    if delta.finish is None:
        return b'"finish_reason":null'
    finish = b'"finish_reason":"%b","stop_reason":%b' % (delta.finish.encode(), orjson.dumps(delta.stop_reason))
    return finish if delta.timeline is None else finish + b',"timeline":' + orjson.dumps(delta.timeline)


def _dump(model: BaseModel) -> bytes:
    return orjson.dumps(model.model_dump())
