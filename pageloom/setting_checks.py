"""May a setting have this value? If not, the error names its flag and what is accepted."""

from __future__ import annotations

import math
import re
from enum import Enum

from pageloom.errors import InvalidConfig

MAX_PORT = 65535
# What counts as tokens, blocks or sequences travels in 32 bits, and bytes are addressed with 63.
MAX_COUNT, MAX_BYTES = 2**31 - 1, 2**63 - 1
# Beyond what any machine has; each costs a thread or a process before anybody else could object.
MAX_NUM_THREADS, MAX_NUM_RANKS, MAX_NUM_WORKERS = 1024, 1024, 64
_ADDRESS = re.compile(r"unix:.+|.+:\d+")


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def require_port(name: str, value: int) -> None:
    if not 0 <= value <= MAX_PORT:
        raise InvalidConfig(f"{flag_name(name)} must be a port between 0 and {MAX_PORT}, not {value}")


def require_origin(origin: str) -> None:
    # A path, or a slash at the end, would never equal what a browser sends.
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
        raise InvalidConfig(f"--allowed-origins takes an origin such as https://example.com, or *, not {origin!r}")


def is_address(text: str) -> bool:
    """Whether it is HOST:PORT or unix:/PATH."""
    # gRPC takes an address without a port too, and then dials that of HTTPS for ever.
    return _ADDRESS.fullmatch(text) is not None


def require_at_least(name: str, value: int, low: int, high: int = MAX_COUNT) -> None:
    if value < low:
        raise InvalidConfig(f"{flag_name(name)} must be at least {low}, not {value}")
    if value > high:
        raise InvalidConfig(f"{flag_name(name)} must be at most {high}, not {value}")


def require_seconds(name: str, value: float, low: float) -> None:
    # Written so that NaN fails too.
    if not low <= value < math.inf:
        raise InvalidConfig(f"{flag_name(name)} must be at least {low:g} seconds and finite, not {value:g}")


def require_part(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InvalidConfig(f"{flag_name(name)} must be above 0 and at most 1, not {value:g}")


def require_room_for_decodes(max_num_batched_tokens: int, max_num_seqs: int) -> None:
    # Every running sequence may continue in every step, so a step must have room for all.
    if max_num_batched_tokens < max_num_seqs:
        raise InvalidConfig(
            f"--max-num-batched-tokens must be at least --max-num-seqs, which is {max_num_seqs}, "
            f"not {max_num_batched_tokens}"
        )


def require_one_of(name: str, value: str | int, accepted: type[Enum]) -> None:
    values = [choice.value for choice in accepted]
    if value not in values:
        names = ", ".join(map(str, values))
        raise InvalidConfig(f"{flag_name(name)} must be one of {names}, not {str(value)[:64]}")
