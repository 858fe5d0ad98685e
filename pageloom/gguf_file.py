"""What a GGUF file holds: metadata and where its tensors lie, checked against the file before anyone maps it.

Own code where the `gguf` package has a reader, because that reader trusts the header's lengths and
offsets, and takes 2.4 s and 150 MB for a 49,000-token vocabulary (this one: 0.1 s). Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pageloom.errors import ModelLoadError

MetadataValue = int | float | bool | str | list["MetadataValue"]

MAX_ENTRIES = 1_000_000
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ITEMS = 1 << 24
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
_MAX_NESTING = 4
_STRING, _ARRAY = 8, 9
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# ggml type -> (elements in a block, bytes of a block); ggml.h's type_traits.
_BLOCK_SHAPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor: `shape` outermost dimension first, `offset` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A checked header."""

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads and checks the header; no tensor data is touched.

    Raises ModelLoadError, naming the file and the entry, if anything in the header is out of
    bounds, unknown, overlapping or cut off.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(path, data)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from None
    except _Malformed as error:
        raise ModelLoadError(f"{path}: not a valid GGUF file: {error}") from None


class _Malformed(Exception):
    """The header breaks the format."""


class _Cursor:
    """A position in the mapped file; every read is checked against its end."""

    __slots__ = ("data", "position")

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self.data):
            raise _Malformed(f"the file ends at byte {len(self.data)}, inside its header: it is truncated")
        chunk = self.data[self.position : end]
        self.position = end
        return chunk

    def unsigned(self, num_bytes: int) -> int:
        return int.from_bytes(self.take(num_bytes), "little")

    def count(self, what: str, most: int) -> int:
        value = self.unsigned(8)
        if value > most:
            raise _Malformed(f"{what} is {value}, more than {most}")
        return value

    def string(self) -> str:
        # Vocabularies hold byte sequences that need not be UTF-8 on their own.
        return self.take(self.count("a string's length", MAX_STRING_BYTES)).decode("utf-8", "surrogateescape")


def _read(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    if cursor.take(4) != b"GGUF":
        raise _Malformed("it does not start with the bytes GGUF")
    version = cursor.unsigned(4)
    if version not in (2, 3):
        raise _Malformed(f"its version is {version}; 2 and 3 are supported")
    num_tensors = cursor.count("the number of tensors", MAX_ENTRIES)
    num_entries = cursor.count("the number of metadata entries", MAX_ENTRIES)
    metadata = dict(_metadata_entry(cursor) for _ in range(num_entries))
    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    tensors = _place(infos, _data_start(cursor.position, metadata), len(data))
    return GgufFile(path=path, metadata=metadata, tensors=tensors)


def _metadata_entry(cursor: _Cursor) -> tuple[str, MetadataValue]:
    key = cursor.string()
    try:
        return key, _value(cursor, cursor.unsigned(4), depth=0)
    except _Malformed as error:
        raise _Malformed(f"metadata {key!r}: {error}") from None


def _value(cursor: _Cursor, kind: int, depth: int) -> MetadataValue:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _array(cursor, depth)
    return _scalars(cursor, kind, 1)[0]


def _array(cursor: _Cursor, depth: int) -> list[MetadataValue]:
    if depth >= _MAX_NESTING:
        raise _Malformed(f"arrays are nested deeper than {_MAX_NESTING}")
    kind = cursor.unsigned(4)
    length = cursor.count("an array's length", MAX_ARRAY_ITEMS)
    read: Callable[[], MetadataValue]
    if kind == _STRING:
        read = cursor.string
    elif kind == _ARRAY:
        read = lambda: _array(cursor, depth + 1)  # noqa: E731
    else:
        return _scalars(cursor, kind, length)
    return [read() for _ in range(length)]


def _scalars(cursor: _Cursor, kind: int, length: int) -> list[MetadataValue]:
    code = _SCALAR_FORMATS.get(kind)
    if code is None:
        raise _Malformed(f"value type {kind} is unknown")
    layout = f"<{length}{code}"
    return list(struct.unpack(layout, cursor.take(struct.calcsize(layout))))


def _tensor_info(cursor: _Cursor) -> GgufTensor:
    name = cursor.string()
    num_dims = cursor.unsigned(4)
    if not 1 <= num_dims <= MAX_DIMS:
        raise _Malformed(f"tensor {name!r} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
    # The file lists the innermost dimension first.
    shape = tuple(reversed([cursor.unsigned(8) for _ in range(num_dims)]))
    ggml_type, offset = cursor.unsigned(4), cursor.unsigned(8)
    if ggml_type not in _BLOCK_SHAPES:
        raise _Malformed(f"tensor {name!r} has the unknown ggml type {ggml_type}")
    block_elements, block_bytes = _BLOCK_SHAPES[ggml_type]
    if min(shape) < 1 or shape[-1] % block_elements:
        raise _Malformed(f"tensor {name!r} has shape {shape}, which its type of {block_elements}-blocks cannot have")
    num_bytes = prod(shape) // block_elements * block_bytes
    return GgufTensor(name=name, shape=shape, ggml_type=ggml_type, offset=offset, num_bytes=num_bytes)


def _data_start(header_end: int, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise _Malformed(f"general.alignment is {alignment!r}, not a power of two")
    return -(-header_end // alignment) * alignment


def _place(infos: list[GgufTensor], data_start: int, file_bytes: int) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    end_of_last, last_name = data_start, ""
    for info in sorted(infos, key=lambda tensor: tensor.offset):
        start = data_start + info.offset
        if start < end_of_last:
            raise _Malformed(f"tensor {info.name!r} overlaps {last_name!r}")
        if start + info.num_bytes > file_bytes:
            raise _Malformed(
                f"tensor {info.name!r} ends at byte {start + info.num_bytes}, but the file has {file_bytes}: "
                "it is truncated"
            )
        if info.name in tensors:
            raise _Malformed(f"tensor {info.name!r} is there twice")
        end_of_last, last_name = start + info.num_bytes, info.name
        tensors[info.name] = GgufTensor(
            name=info.name, shape=info.shape, ggml_type=info.ggml_type, offset=start, num_bytes=info.num_bytes
        )
    return tensors
