"""Is a request that arrives well-formed? What needs the core's state to be decided is not decided here."""

from __future__ import annotations

import math

from pageloom.errors import InvalidRequest
from pageloom.requests import MAX_TENANT_CHARS, GenerateRequest

MAX_REQUEST_ID_CHARS = 256


def check_request(request: GenerateRequest) -> None:
    """Raises InvalidRequest, naming the field and what it accepts."""
    if not 1 <= len(request.request_id) <= MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters, not {len(request.request_id)}",
            param="request_id",
        )
    if len(request.tenant) > MAX_TENANT_CHARS:
        raise InvalidRequest(
            f"tenant must have at most {MAX_TENANT_CHARS} characters, not {len(request.tenant)}", param="tenant"
        )
    # Written so that NaN fails too.
    if request.deadline_s is not None and not 0 < request.deadline_s < math.inf:
        raise InvalidRequest(
            f"deadline_s must be greater than 0 and finite, not {request.deadline_s:g}", param="deadline_s"
        )
