"""How a grammar compiler and its processes write messages to each other: a length, then so many bytes."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size


def encode_frame(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def payload_len(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    return int(length)
