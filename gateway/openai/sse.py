"""Deltas -> server-sent events in OpenAI's chunk shapes. Pure. What all chunks of an answer share is encoded once."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson
from pydantic import BaseModel

from gateway.answers.choice import ChoiceDelta
from gateway.answers.token_counts import TokenCounts
from gateway.errors import error_body
from gateway.openai.logprobs import chat_logprobs, completion_logprobs
from gateway.openai.message_deltas import reasoning_delta, tool_calls_delta
from gateway.openai.schemas import GenerationRequest, StreamOptions
from gateway.requests.job import Job
from pageloom.errors import PageloomError
from pageloom.tokenizer import Tokenizer

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_NULL = b"null"
_NOT_FINISHED = b'"finish_reason":null'


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

    def chunk(self, choice: bytes, counts: TokenCounts | None = None, more: bytes = b"") -> bytes:
        """`counts` are those so far; `more` are members of the chunk besides, each with a comma before it."""
        if not self.include_usage:
            return b"%b%b]%b}\n\n" % (self._head, choice, more)
        shown = counts.to_json() if counts is not None and self.is_continuous else _NULL
        return b'%b%b],"usage":%b%b}\n\n' % (self._head, choice, shown, more)

    def end(self, counts: TokenCounts) -> bytes:
        """The usage chunk, if it was asked for, and the end mark."""
        if not self.include_usage:
            return DONE
        return self._head + b'],"usage":' + counts.to_json() + b"}\n\n" + DONE


class _ChunkEncoder:
    """What the two `stream.StreamEncoder`s of chunks have in common."""

    def __init__(self, frame: ChunkFrame, tokenizer: Tokenizer, job: Job) -> None:
        self._frame = frame
        self._tokenizer = tokenizer
        self._job = job
        self._begun: set[int] = set()

    @property
    def wants_counts(self) -> bool:
        return self._frame.include_usage and self._frame.is_continuous

    def end(self, counts: TokenCounts) -> bytes:
        return self._frame.end(counts)

    def fail(self, error: PageloomError) -> bytes:
        """No [DONE] follows it."""
        return b"data: " + orjson.dumps(error_body(error)) + b"\n\n"


class ChatChunkEncoder(_ChunkEncoder):
    """The role comes once per choice, before its text, and with it the message that is repeated before the text;
    the finish reason in a last chunk of its own."""

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        events = b""
        if delta.choice_index not in self._begun:
            self._begun.add(delta.choice_index)
            events = self._first_chunk(delta.choice_index, counts)
        if delta.reasoning:
            events += self._chunk(delta.choice_index, reasoning_delta(delta.reasoning), counts)
        if delta.text or delta.scored or delta.token_ids:
            logprobs = _NULL
            if self._job.with_logprobs:
                logprobs = _dump(chat_logprobs(delta.scored, self._tokenizer, as_ids=self._job.tokens_as_ids))
            text = b'{"content":' + orjson.dumps(delta.text) + b"}"
            events += self._chunk(
                delta.choice_index, text, counts, logprobs, _NOT_FINISHED + _token_ids(delta.token_ids)
            )
        if delta.tool_calls:
            events += self._chunk(delta.choice_index, tool_calls_delta(delta.tool_calls), counts)
        if delta.finish is not None:
            events += self._chunk(delta.choice_index, b"{}", counts, finish=_finish(delta))
        return events

    def _first_chunk(self, index: int, counts: TokenCounts | None) -> bytes:
        prompt = self._job.prompt_of(index)
        delta = b'{"role":"assistant","content":%b}' % orjson.dumps(prompt.echo)
        more = b',"prompt_token_ids":' + orjson.dumps(prompt.token_ids) if self._job.return_token_ids else b""
        return self._chunk(index, delta, counts, more=more)

    def _chunk(
        self,
        index: int,
        delta: bytes,
        counts: TokenCounts | None,
        logprobs: bytes = _NULL,
        finish: bytes = _NOT_FINISHED,
        more: bytes = b"",
    ) -> bytes:
        choice = b'{"index":%d,"delta":%b,"logprobs":%b,%b}' % (index, delta, logprobs, finish)
        return self._frame.chunk(choice, counts, more)


class CompletionChunkEncoder(_ChunkEncoder):
    """What comes once per choice, the echo of its prompt and the prompt's ids, comes with its first text."""

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        text, more = delta.text, _token_ids(delta.token_ids)
        if delta.choice_index not in self._begun:
            self._begun.add(delta.choice_index)
            prompt = self._job.prompt_of(delta.choice_index)
            text = prompt.echo + text
            if self._job.return_token_ids:
                more += b',"prompt_token_ids":' + orjson.dumps(prompt.token_ids)
        if not (text or delta.scored or delta.echoed or more) and delta.finish is None:
            return b""
        logprobs = _NULL
        if self._job.with_logprobs:
            shown = completion_logprobs(delta.scored, self._tokenizer, delta.echoed, as_ids=self._job.tokens_as_ids)
            logprobs = _dump(shown)
        choice = b'{"index":%d,"text":%b,"logprobs":%b,%b}' % (
            delta.choice_index,
            orjson.dumps(text),
            logprobs,
            _finish(delta) + more,
        )
        return self._frame.chunk(choice, counts)


def _token_ids(token_ids: Sequence[int]) -> bytes:
    return b',"token_ids":' + orjson.dumps(token_ids) if token_ids else b""


def _finish(delta: ChoiceDelta) -> bytes:
    if delta.finish is None:
        return _NOT_FINISHED
    finish = b'"finish_reason":"%b","stop_reason":%b' % (delta.finish.encode(), orjson.dumps(delta.stop_reason))
    return finish if delta.timeline is None else finish + b',"timeline":' + orjson.dumps(delta.timeline)


def _dump(model: BaseModel) -> bytes:
    return orjson.dumps(model.model_dump())
