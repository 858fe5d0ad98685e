"""Reading an upload, a multipart form with one file, within limits of its own: a file may be larger than a body of
JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import BodyError
from gateway.http.bounded_body import bounded, require_content_type
from pageloom.errors import Overloaded

# They take room on the disk before the store knows of them.
MAX_UPLOADS = 16
MAX_FIELDS, MAX_FIELD_BYTES = 8, 4096
# The boundaries, the heads and the other fields.
_MAX_FRAMING_BYTES = 64 * 1024


class UploadRoute(APIRoute):
    """A FastAPI route whose form is read by `UploadRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        num_uploads = 0

        async def handle_upload(request: Request) -> Response:
            nonlocal num_uploads
            if request.method != "POST":
                return await handle(request)
            if num_uploads >= MAX_UPLOADS:
                raise Overloaded(f"{MAX_UPLOADS} files arrive now, which is the most")
            num_uploads += 1
            try:
                return await handle(UploadRequest(request.scope, request.receive))
            finally:
                num_uploads -= 1

        return handle_upload


class UploadRequest(Request):
    def form(
        self,
        *,
        max_files: int | float = 1,
        max_fields: int | float = MAX_FIELDS,
        max_part_size: int = MAX_FIELD_BYTES,
    ) -> Any:
        """Raises BodyError: 415 for another content type, 413 for a file over the limit. What is large goes to a
        temporary file while it arrives."""
        require_content_type(self.headers, "multipart/form-data")
        # FastAPI asks with limits of its own, which are far wider.
        return super().form(
            max_files=min(max_files, 1),
            max_fields=min(max_fields, MAX_FIELDS),
            max_part_size=min(max_part_size, MAX_FIELD_BYTES),
        )

    async def stream(self) -> AsyncGenerator[bytes]:
        max_bytes = self.app.state.gateway.config.max_file_bytes
        too_large = BodyError(413, f"the file is larger than {max_bytes} bytes", close=True)
        async for chunk in bounded(super().stream(), self.headers, max_bytes + _MAX_FRAMING_BYTES, too_large):
            yield chunk
