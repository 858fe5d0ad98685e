"""Which responses can be asked for again? A store in memory, bounded in number, bytes and age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import orjson

from gateway.errors import NotFound
from gateway.responses.schemas import InputItem
from pageloom.errors import InvalidRequest, Overloaded


class StoredResponse:
    """A response and the conversation that led to it. One that runs in the background gains events, which any number
    of readers follow."""

    def __init__(self, response: dict[str, Any], conversation: Sequence[InputItem], stored_at_s: float) -> None:
        self.response = response
        self.conversation = tuple(conversation)
        self.stored_at_s = stored_at_s
        self.ended = response["status"] not in ("queued", "in_progress")
        self.task: asyncio.Task[None] | None = None
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._conversation_bytes = sum(len(orjson.dumps(item.model_dump())) for item in self.conversation)

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def num_bytes(self) -> int:
        return self._conversation_bytes + len(orjson.dumps(self.response)) + sum(map(len, self._events))

    @property
    def next_conversation(self) -> list[InputItem]:
        """What a response that follows this one begins with."""
        return [*self.conversation, *(InputItem.model_validate(item) for item in self.response["output"])]

    def append(self, events: bytes) -> None:
        """Whole server-sent events, which have no empty line but at their ends."""
        self._events += [event + b"\n\n" for event in events.split(b"\n\n") if event]
        self._wake()

    def end(self, response: dict[str, Any]) -> None:
        self.response, self.ended = response, True
        self._wake()

    async def follow(self, first: int) -> AsyncGenerator[bytes]:
        """The events from number `first` on, until the response has ended."""
        while True:
            changed = self._changed
            if first < len(self._events):
                events, first = b"".join(self._events[first:]), len(self._events)
                yield events
            elif self.ended:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def not_stored(response_id: str) -> NotFound:
    return NotFound(
        f"there is no response {response_id[:80]!r}: it was not stored, was deleted, or is too old", param="response_id"
    )


class ResponseStore:
    """Forgets what is too old, and the oldest that have ended if there are too many. `clock` gives seconds."""

    def __init__(
        self, *, max_responses: int, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # In the order in which they were stored.
        self._stored: dict[str, StoredResponse] = {}
        # As of the last time that each was counted.
        self._bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def num_bytes(self) -> int:
        return sum(self._bytes.values())

    def require_background(self) -> None:
        """Raises InvalidRequest if nothing is stored."""
        if self._max_responses == 0:
            raise InvalidRequest("background is not possible: this server stores no responses", param="background")

    def require_room(self) -> None:
        """For one more that runs in the background. Raises Overloaded if all that can be stored have yet to end."""
        if sum(not stored.ended for stored in self._stored.values()) >= self._max_responses:
            raise Overloaded(f"{self._max_responses} responses run in the background, which is the most")

    def add(self, response: dict[str, Any], conversation: Sequence[InputItem]) -> StoredResponse:
        stored = StoredResponse(response, conversation, self._clock())
        self._stored[stored.id] = stored
        self.count(stored)
        return stored

    def count(self, stored: StoredResponse) -> None:
        """Again, after it has grown."""
        if stored.id in self._stored:
            self._bytes[stored.id] = stored.num_bytes
            self._forget()

    def get(self, response_id: str) -> StoredResponse:
        """Raises NotFound."""
        self._forget()
        stored = self._stored.get(response_id)
        if stored is None:
            raise not_stored(response_id)
        return stored

    def remove(self, response_id: str) -> StoredResponse:
        """Raises NotFound."""
        stored = self.get(response_id)
        self._drop(response_id)
        return stored

    def _forget(self) -> None:
        oldest_s = self._clock() - self._ttl_s
        num_bytes = self.num_bytes
        for response_id, stored in list(self._stored.items()):
            too_many = len(self._stored) > self._max_responses or num_bytes > self._max_bytes
            if stored.ended and (too_many or stored.stored_at_s < oldest_s):
                num_bytes -= self._bytes[response_id]
                self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        del self._stored[response_id], self._bytes[response_id]
