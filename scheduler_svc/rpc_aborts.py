"""Turns an error of ours into the status, message and metadata of a failed RPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pageloom.errors import PageloomError
from pageloom.rpc_errors import PARAM_METADATA_KEY, to_grpc_status


@asynccontextmanager
async def aborting(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Ends the RPC with the status that belongs to a PageloomError raised inside."""
    try:
        yield
    except PageloomError as error:
        metadata = ((PARAM_METADATA_KEY, error.param),) if error.param else ()
        await context.abort(to_grpc_status(error), error.message, metadata)
