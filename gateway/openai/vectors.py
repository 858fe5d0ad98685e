"""Vectors of the engine -> the JSON of an answer: cut, of unit length, as numbers or base64. Pure."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence

import orjson

_FLOAT32_BYTES = 4


def embeddings_json(
    vectors: Sequence[bytes], *, dimensions: int | None, normalize: bool, as_base64: bool, rest: dict[str, object]
) -> bytes:
    """An EmbeddingResponse with the fields `rest` beside its data. `vectors` are little-endian float32; of each the
    first `dimensions` are kept, and then it is made a unit vector if `normalize`. Both forms hold the same float32."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _shown(_shaped(vector, dimensions, normalize=normalize), as_base64=as_base64),
        }
        for index, vector in enumerate(vectors)
    ]
    return orjson.dumps({**rest, "data": data})


def _shaped(vector: bytes, dimensions: int | None, *, normalize: bool) -> bytes:
    if dimensions is not None:
        vector = vector[: dimensions * _FLOAT32_BYTES]
    if not normalize:
        return vector
    values = _values(vector)
    length = math.hypot(*values)
    # Nothing gives the zero vector a direction.
    return vector if length == 0 else struct.pack(f"<{len(values)}f", *[value / length for value in values])


def _shown(vector: bytes, *, as_base64: bool) -> str | tuple[float, ...]:
    return base64.b64encode(vector).decode() if as_base64 else _values(vector)


def _values(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // _FLOAT32_BYTES}f", vector)
