"""Whom is a request for, and for how long is its answer worth something? HTTP headers, for they are set by
what stands before the gateway as often as by the client."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.datastructures import Headers

from pageloom.errors import DeadlineExceeded, InvalidRequest
from pageloom.requests import MAX_TENANT_CHARS

TENANT_HEADER = "x-tenant-id"
TIMEOUT_HEADER = "x-request-timeout-s"
MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`tenant` is empty if none is named. `deadline_at_s` is a time of `time.monotonic`."""

    tenant: str = ""
    deadline_at_s: float | None = None

    def left_s(self) -> float | None:
        """Seconds until the deadline; None without one. Raises DeadlineExceeded if none are left."""
        if self.deadline_at_s is None:
            return None
        left_s = self.deadline_at_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"the time that {TIMEOUT_HEADER} gives passed before the engine was asked")
        return left_s


def read_terms(headers: Headers, started_s: float) -> Terms:
    """The terms of a request that came at `started_s` of `time.monotonic`. Raises InvalidRequest, naming the header."""
    return Terms(tenant=_tenant(headers), deadline_at_s=_deadline(headers, started_s))


def _tenant(headers: Headers) -> str:
    tenant = headers.get(TENANT_HEADER, "")
    if len(tenant) > MAX_TENANT_CHARS or not tenant.isascii() or not tenant.isprintable():
        raise InvalidRequest(
            f"{TENANT_HEADER} must be at most {MAX_TENANT_CHARS} printable ASCII characters", param=TENANT_HEADER
        )
    return tenant


def _deadline(headers: Headers, started_s: float) -> float | None:
    given = headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = 0.0
    # Written so that NaN fails too.
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER} must be a number of seconds above 0 and at most {MAX_TIMEOUT_S:g}, not {given[:20]!r}",
            param=TIMEOUT_HEADER,
        )
    return started_s + timeout_s
