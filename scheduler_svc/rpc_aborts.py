"""Turns an error of ours into the status, message and metadata of a failed RPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pageloom.errors import PageloomError
from pageloom.rpc_errors import CODE_METADATA_KEY, PARAM_METADATA_KEY, to_grpc_status


@asynccontextmanager
async def aborting(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Ends the RPC with the status that belongs to a PageloomError raised inside."""
    try:
        yield
    except PageloomError as error:
        metadata = [(CODE_METADATA_KEY, error.code or "error")]
        if error.param:
            metadata.append((PARAM_METADATA_KEY, error.param))
        await context.abort(to_grpc_status(error), error.message, tuple(metadata))
