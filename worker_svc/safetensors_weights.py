"""The tensors of a Hugging Face folder: one safetensors file, or several behind an index."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageloom.errors import ModelLoadError
from worker_svc.checkpoint import Part

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# One tensor for all experts, [experts, rows, columns], as transformers 5 holds them in memory; gate before up.
_FUSED_EXPERTS = re.compile(r"(.*\.experts)\.(gate_up|down)_proj")
_MIXTRAL_EXPERT = re.compile(r"(.*\.experts\.\d+)\.(w[123])\.weight")
_MIXTRAL_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, index: tuple[int | slice, ...]) -> Tensor: ...


class _MappedFile(Protocol):
    """The part of safetensors' safe_open that is used here; the library has no types for it."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Where a tensor is: `index` selects it from a stored one that holds those of all experts; () is all of it."""

    file: Path
    stored_name: str
    shape: tuple[int, ...]
    index: tuple[int | slice, ...] = ()


class SafetensorsWeights:
    """Implements checkpoint.Weights. Opening a file maps it and checks its header against its length;
    the mappings end with this object.

    Each expert's matrices are tensors by themselves, named as Qwen's are on the hub, however the files hold them.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        file_of = _indexed_files(folder / _INDEX) if (folder / _INDEX).is_file() else None
        self.files = tuple(sorted(set(file_of.values()))) if file_of is not None else (_single_file(folder),)
        self._open_files = {path: _open(path) for path in self.files}
        stored = {name: path for path, file in self._open_files.items() for name in file.keys()}  # noqa: SIM118
        for name, path in (file_of or {}).items():
            if stored.get(name) != path:
                raise ModelLoadError(f"{path}: tensor {name} is missing, though {_INDEX} says that it is there")
        self._parts: dict[str, _Part] = {}
        for name, path in stored.items():
            self._parts |= _parts(path, name, tuple(self._open_files[path].get_slice(name).get_shape()))

    @property
    def names(self) -> Collection[str]:
        return self._parts.keys()

    @property
    def dtype(self) -> torch.dtype | None:
        bytes_of: dict[torch.dtype, int] = {}
        for name in self._parts:
            dtype = self._dtype(name)
            bytes_of[dtype] = bytes_of.get(dtype, 0) + self.num_bytes(name)
        return max(bytes_of, key=bytes_of.__getitem__, default=None)

    def num_bytes(self, name: str) -> int:
        return torch.Size(self.shape(name)).numel() * self._dtype(name).itemsize

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def describe(self, name: str) -> str:
        part = self._parts[name]
        expert = f"[{part.index[0]}]" if part.index else ""
        return f"{part.file}: tensor {part.stored_name}{expert}"

    def read(self, name: str, out: Tensor, part: Part | None = None) -> None:
        self._dtype(name)
        stored = self._parts[name]
        index = stored.index if part is None else _narrowed(stored.index, part)
        if index:
            # Of the mapped file no more is touched.
            out.copy_(self._slice(name)[index])
        else:
            # A view of the mapped file, so nothing is copied but what `out` receives.
            out.copy_(self._open_files[stored.file].get_tensor(stored.stored_name))

    def _slice(self, name: str) -> _Slice:
        part = self._parts[name]
        return self._open_files[part.file].get_slice(part.stored_name)

    def read_integers(self, name: str) -> Tensor:
        """A tensor of int64, which no weight is. Raises ModelLoadError if it has another type."""
        part = self._parts[name]
        tensor = self._open_files[part.file].get_tensor(part.stored_name)
        if tensor.dtype != torch.int64:
            raise ModelLoadError(f"{self.describe(name)} has type {tensor.dtype}, it must be int64")
        return tensor

    def _dtype(self, name: str) -> torch.dtype:
        stored = self._slice(name).get_dtype()
        dtype = _DTYPES.get(stored)
        if dtype is None:
            raise ModelLoadError(
                f"{self.describe(name)} has type {stored}, which is not supported; supported are {', '.join(_DTYPES)}"
            )
        return dtype


def _parts(path: Path, stored_name: str, shape: tuple[int, ...]) -> dict[str, _Part]:
    """The tensors that a stored one holds, by their names."""
    name = stored_name.replace(".block_sparse_moe.", ".mlp.")
    fused = _FUSED_EXPERTS.fullmatch(name)
    if fused is not None and len(shape) == 3 and all(shape):
        return _expert_parts(path, stored_name, shape, prefix=fused[1], is_down=fused[2] == "down")
    mixtral = _MIXTRAL_EXPERT.fullmatch(name)
    if mixtral is not None:
        name = f"{mixtral[1]}.{_MIXTRAL_NAMES[mixtral[2]]}.weight"
    return {name: _Part(file=path, stored_name=stored_name, shape=shape)}


def _narrowed(index: tuple[int | slice, ...], part: Part) -> tuple[int | slice, ...]:
    """Where a part of the tensor at `index`, or of the whole stored one, lies in the stored one."""
    entries = slice(part.start, part.stop)
    if not index:
        return (entries,) if part.dim == 0 else (slice(None), entries)
    expert, rows = index
    assert isinstance(rows, slice)
    if part.dim == 1:
        return expert, rows, entries
    return expert, slice(rows.start + part.start, rows.start + part.stop)


def _expert_parts(
    path: Path, stored_name: str, shape: tuple[int, ...], *, prefix: str, is_down: bool
) -> dict[str, _Part]:
    num_experts, num_rows, num_columns = shape
    half = num_rows // 2
    rows = {"down": slice(0, num_rows)} if is_down else {"gate": slice(0, half), "up": slice(half, num_rows)}
    return {
        f"{prefix}.{expert}.{kind}_proj.weight": _Part(
            file=path, stored_name=stored_name, shape=(part.stop - part.start, num_columns), index=(expert, part)
        )
        for expert in range(num_experts)
        for kind, part in rows.items()
    }


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
