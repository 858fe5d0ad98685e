"""Which responses can be asked for again where several gateways answer? A store in a file that they share, bounded in
number, bytes and age."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.responses.schemas import InputItem
from gateway.responses.store import StoredResponse, not_stored
from pageloom.errors import InvalidRequest

# Another gateway's transaction takes a millisecond.
_BUSY_TIMEOUT_S = 5.0
_SCHEMA = """CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    stored_at_s REAL NOT NULL,
    num_bytes INTEGER NOT NULL,
    content BLOB NOT NULL
)"""
_FORGET_OLD = "DELETE FROM responses WHERE stored_at_s < ?"
# The newest that are within both limits stay.
_FORGET_MANY = """DELETE FROM responses WHERE number IN (
    SELECT number FROM (
        SELECT number, ROW_NUMBER() OVER newest AS place, SUM(num_bytes) OVER newest AS total
        FROM responses WINDOW newest AS (ORDER BY number DESC)
    ) WHERE place > ? OR total > ?
)"""
_log = structlog.get_logger(__name__)


class SharedResponseStore:
    """Each call is a transaction, so what one gateway has stored before it ends an answer every other one finds. It
    outlasts no restart of all of them, so nothing waits for the disk. `clock` gives the time of day in seconds."""

    def __init__(
        self, path: Path, *, max_responses: int, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        with self._transaction() as database:
            database.execute(_SCHEMA)

    def require_background(self) -> None:
        """Raises InvalidRequest: a task is one gateway's, and the next request may reach another."""
        raise InvalidRequest(
            "background is not possible: this server has several gateways, and the next request may reach another one",
            param="background",
        )

    def add(self, response: dict[str, Any], conversation: Sequence[InputItem]) -> None:
        """A response that has ended. One that cannot be stored is still an answer."""
        items = [item.model_dump(exclude_none=True) for item in conversation]
        content = orjson.dumps({"response": response, "conversation": items})
        row = (response["id"], self._clock(), len(content), content)
        try:
            with self._transaction() as database:
                database.execute("INSERT INTO responses (id, stored_at_s, num_bytes, content) VALUES (?, ?, ?, ?)", row)
                self._forget(database)
        except sqlite3.Error as error:
            _log.error("a response was not stored", response_id=response["id"], because=str(error))

    def get(self, response_id: str) -> StoredResponse:
        """Raises NotFound."""
        with self._transaction() as database:
            self._forget(database)
            row = database.execute("SELECT content, stored_at_s FROM responses WHERE id = ?", (response_id,)).fetchone()
        if row is None:
            raise not_stored(response_id)
        content = orjson.loads(row[0])
        conversation = [InputItem.model_validate(item) for item in content["conversation"]]
        return StoredResponse(content["response"], conversation, row[1])

    def remove(self, response_id: str) -> StoredResponse:
        """Raises NotFound."""
        stored = self.get(response_id)
        with self._transaction() as database:
            database.execute("DELETE FROM responses WHERE id = ?", (response_id,))
        return stored

    def _forget(self, database: sqlite3.Connection) -> None:
        database.execute(_FORGET_OLD, (self._clock() - self._ttl_s,))
        database.execute(_FORGET_MANY, (self._max_responses, self._max_bytes))

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)) as database:
            database.execute("PRAGMA synchronous = OFF")
            with database:
                yield database
