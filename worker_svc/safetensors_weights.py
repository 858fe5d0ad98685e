"""The tensors of a Hugging Face folder: one safetensors file, or several behind an index."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageloom.errors import ModelLoadError
from worker_svc.checkpoint import Part

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, index: slice | tuple[slice, slice]) -> Tensor: ...


class _MappedFile(Protocol):
    """The part of safetensors' safe_open that is used here; the library has no types for it."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> Tensor: ...


class SafetensorsWeights:
    """Implements checkpoint.Weights. Opening a file maps it and checks its header against its length;
    the mappings end with this object."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        file_of = _indexed_files(folder / _INDEX) if (folder / _INDEX).is_file() else None
        self.files = tuple(sorted(set(file_of.values()))) if file_of is not None else (_single_file(folder),)
        self._open_files = {path: _open(path) for path in self.files}
        self._file_of = {name: path for path, file in self._open_files.items() for name in file.keys()}  # noqa: SIM118
        for name, path in (file_of or {}).items():
            if self._file_of.get(name) != path:
                raise ModelLoadError(f"{path}: tensor {name} is missing, though {_INDEX} says that it is there")

    @property
    def names(self) -> Collection[str]:
        return self._file_of.keys()

    @property
    def dtype(self) -> torch.dtype | None:
        bytes_of: dict[torch.dtype, int] = {}
        for name in self._file_of:
            dtype = self._dtype(name)
            bytes_of[dtype] = bytes_of.get(dtype, 0) + self.num_bytes(name)
        return max(bytes_of, key=bytes_of.__getitem__, default=None)

    def num_bytes(self, name: str) -> int:
        return torch.Size(self.shape(name)).numel() * self._dtype(name).itemsize

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open_files[self._file_of[name]].get_slice(name).get_shape())

    def describe(self, name: str) -> str:
        return f"{self._file_of[name]}: tensor {name}"

    def read(self, name: str, out: Tensor, part: Part | None = None) -> None:
        self._dtype(name)
        file = self._open_files[self._file_of[name]]
        if part is None:
            # The tensor is a view of the mapped file, so nothing is copied but what `out` receives.
            out.copy_(file.get_tensor(name))
        else:
            # Of the mapped file only what the part needs is touched.
            entries = slice(part.start, part.stop)
            out.copy_(file.get_slice(name)[entries if part.dim == 0 else (slice(None), entries)])

    def _dtype(self, name: str) -> torch.dtype:
        stored = self._open_files[self._file_of[name]].get_slice(name).get_dtype()
        dtype = _DTYPES.get(stored)
        if dtype is None:
            raise ModelLoadError(
                f"{self.describe(name)} has type {stored}, which is not supported; supported are {', '.join(_DTYPES)}"
            )
        return dtype


def _open(path: Path) -> _MappedFile:
    try:
        return cast(_MappedFile, safe_open(path, framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path}: truncated or not a valid safetensors file: {error}") from None


def _single_file(folder: Path) -> Path:
    path = folder / _SINGLE
    if path.is_file():
        return path
    pickled = sorted(folder.glob("*.bin"))
    hint = f" ({pickled[0].name} holds pickled weights, which are never loaded)" if pickled else ""
    raise ModelLoadError(f"model folder {folder} has neither {_SINGLE} nor {_INDEX}{hint}")


def _indexed_files(index: Path) -> dict[str, Path]:
    """Tensor name -> file, from a shard index."""
    try:
        content = json.loads(index.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{index}: cannot be read as JSON: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: has no weight_map")
    files: dict[str, Path] = {}
    for name, file_name in weight_map.items():
        # A plain name only: an index must not reach out of its folder.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelLoadError(f"{index}: {file_name!r} is not the name of a file beside it")
        if not (index.parent / file_name).is_file():
            raise ModelLoadError(f"{index.parent / file_name}: the file is missing; {_INDEX} needs it for {name}")
        files[name] = index.parent / file_name
    return files
