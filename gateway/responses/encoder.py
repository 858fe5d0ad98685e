"""Deltas -> the server-sent events of a response, numbered; and the response that they add up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from gateway.answers.choice import ChoiceDelta
from gateway.answers.token_counts import TokenCounts
from gateway.responses.output_items import Event, OutputItems
from gateway.responses.response_object import ResponseDraft
from pageloom.errors import PageloomError
from pageloom.tokenizer import Tokenizer


class ResponseEncoder:
    """A `stream.StreamEncoder`. `response` is what is known so far; `on_end` is told how it ended, unless nobody was
    left to read it."""

    wants_counts = False

    def __init__(self, draft: ResponseDraft, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._draft = draft
        self._output = OutputItems(tokenizer, with_logprobs=with_logprobs)
        self._num_events = 0
        self._counts: TokenCounts | None = None
        self.on_end: Callable[[dict[str, Any]], object] = lambda _response: None

    @property
    def response_id(self) -> str:
        return self._draft.id

    @property
    def response(self) -> dict[str, Any]:
        return self._draft.to_json(self._output.items, self._counts)

    def begin(self) -> bytes:
        """The events that come before anything is generated."""
        created = self._event({"type": "response.created", "response": self.response})
        self._draft.status = "in_progress"
        return created + self._event({"type": "response.in_progress", "response": self.response})

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        events = self.begin() if self._num_events == 0 else b""
        self._draft.take(delta)
        return events + b"".join(map(self._event, self._output.take(delta)))

    def end(self, counts: TokenCounts) -> bytes:
        self._counts = counts
        events = self.begin() if self._num_events == 0 else b""
        events += b"".join(map(self._event, self._output.finish(cut_off=self._draft.cuts_item)))
        self._draft.end()
        self.on_end(self.response)
        return events + self._event({"type": f"response.{self._draft.status}", "response": self.response})

    def fail(self, error: PageloomError) -> bytes:
        self._draft.fail(error)
        self.on_end(self.response)
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return self._event(told) + self._event({"type": "response.failed", "response": self.response})

    def cancel(self) -> bytes:
        """OpenAI has no event for it: followers get the last one that clients know for an answer that is not whole."""
        self._draft.cancel()
        return self._event({"type": "response.incomplete", "response": self.response})

    def _event(self, event: Event) -> bytes:
        data = orjson.dumps(event | {"sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)
