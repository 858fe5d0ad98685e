"""A response that nobody waits for: it runs in a task of its own and is read from the store."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from gateway.answers.stream import shown_error
from gateway.http.middleware import RequestRecord
from gateway.requests.job import Job
from gateway.responses.encoder import ResponseEncoder
from gateway.responses.store import ResponseStore, StoredResponse
from gateway.runtime import Gateway, generating


def start_in_background(
    gateway: Gateway, store: ResponseStore, stored: StoredResponse, job: Job, encoder: ResponseEncoder
) -> None:
    """Its task can be cancelled by `cancel` for as long as the response is kept."""
    stored.append(encoder.begin())
    stored.response = encoder.response
    stored.task = gateway.background.start(_run(gateway, store, stored, job, encoder), f"response {stored.id}")


async def _run(
    gateway: Gateway, store: ResponseStore, stored: StoredResponse, job: Job, encoder: ResponseEncoder
) -> None:
    scope = {"type": "http", "state": {"record": RequestRecord(request_id=stored.id)}}
    try:
        async with generating(gateway, scope, _never_disconnected, stored.id, job) as generation:
            while (deltas := await generation.next_deltas()) is not None:
                stored.append(b"".join(encoder.encode(delta, None) for delta in deltas))
                stored.response = encoder.response
        stored.append(encoder.end(generation.counts))
    except asyncio.CancelledError:
        stored.append(encoder.cancel())
        raise
    except Exception as error:
        stored.append(encoder.fail(shown_error(error)))
    finally:
        stored.end(encoder.response)
        store.count(stored)


async def _never_disconnected() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing sets that future")


async def cancel(stored: StoredResponse) -> None:
    """Returns when it has ended."""
    if stored.task is not None and not stored.ended:
        stored.task.cancel()
        await asyncio.wait((stored.task,))
