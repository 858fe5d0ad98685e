"""A request's body while it arrives: is it of the expected type, and not larger than a limit?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from starlette.datastructures import Headers

from gateway.errors import BodyError


def require_content_type(headers: Headers, expected: str) -> None:
    """Raises BodyError (415)."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != expected:
        raise BodyError(415, f"content-type must be {expected}, not {kind or 'absent'}", close=True)


async def bounded(
    chunks: AsyncIterator[bytes], headers: Headers, max_bytes: int, too_large: BodyError
) -> AsyncGenerator[bytes]:
    """The chunks, of which no more than `max_bytes` are passed on. Raises `too_large` if there are more.

    A body that is a little too large is read to its end: a client that is still sending when the connection closes sees
    a reset instead of the answer.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > 2 * max_bytes:
        raise too_large
    num_bytes = 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > 2 * max_bytes:
            raise too_large
        if num_bytes <= max_bytes:
            yield chunk
    if num_bytes > max_bytes:
        raise too_large
