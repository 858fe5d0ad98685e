"""Do two workers run the same model? A digest of its files, cheap enough to take at every start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch

from worker_svc.device import dtype_name

_EDGE_BYTES = 1 << 20
_NUM_SAMPLES = 256
_SAMPLE_BYTES = 4096


def model_digest(files: Iterable[Path], dtype: torch.dtype, *, is_quantized: bool) -> str:
    """SHA-256, in hex, of what decides the KV values: the files in the given order, the dtype, and whether the
    weights stay quantized.

    Of each file it takes the size, the first and last MiB (the first holds a header or a whole small
    file), and 256 samples of 4 KiB spread evenly between: hashing gigabytes would delay each start by
    seconds. Names do not count, so copies of a model under other names agree.
    """
    digest = hashlib.sha256(dtype_name(dtype).encode())
    if is_quantized:
        digest.update(b", quantized weights")
    for path in files:
        num_bytes = path.stat().st_size
        digest.update(num_bytes.to_bytes(8, "little"))
        with path.open("rb") as file:
            for offset, length in _samples(num_bytes):
                file.seek(offset)
                digest.update(file.read(length))
    return digest.hexdigest()


def _samples(num_bytes: int) -> list[tuple[int, int]]:
    """(offset, length) of what is hashed; all of it if that is not more."""
    if num_bytes <= 2 * _EDGE_BYTES + _NUM_SAMPLES * _SAMPLE_BYTES:
        return [(0, num_bytes)]
    stride = (num_bytes - 2 * _EDGE_BYTES) // _NUM_SAMPLES
    inner = [(_EDGE_BYTES + i * stride, _SAMPLE_BYTES) for i in range(_NUM_SAMPLES)]
    return [(0, _EDGE_BYTES), *inner, (num_bytes - _EDGE_BYTES, _EDGE_BYTES)]
