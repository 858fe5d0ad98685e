"""What holds for the sampling parameters that a request leaves out? A generation_config.json says it, or nobody."""

from __future__ import annotations

from pathlib import Path

from pageloom.errors import InvalidConfig, InvalidRequest, ModelLoadError
from pageloom.model_files import ModelFiles
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import read_json_object

_FILE_NAME = "generation_config.json"
# The file's name -> ours.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def load_sampling_defaults(files: ModelFiles, source: str) -> tuple[SamplingParams, str]:
    """The defaults, and one line on what they are and where they come from. `source` is "auto" for the model's
    own, "vllm" for none, or a folder. Raises ModelLoadError or InvalidConfig."""
    path = _path(files, source)
    found = {} if path is None else read_json_object(path)
    values = {ours: found[theirs] for theirs, ours in _NAMES.items() if found.get(theirs) is not None}
    try:
        defaults = SamplingParams(**values)  # type: ignore[arg-type]
    except (InvalidRequest, TypeError) as error:
        whose = f"the model's {_FILE_NAME}" if source == "auto" else path
        raise ModelLoadError(f"{whose} is not valid: {error}") from None
    if not values:
        reason = "--generation-config vllm" if source == "vllm" else "none come with the model"
        return defaults, f"temperature=1.0, top_p=1.0 ({reason})"
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    return defaults, f"{shown} (from {'the model' if source == 'auto' else path}; a request's own values win)"


def _path(files: ModelFiles, source: str) -> Path | None:
    if source == "vllm" or (source == "auto" and files.is_gguf):
        return None
    if source == "auto":
        return files.path / _FILE_NAME
    path = Path(source).expanduser() / _FILE_NAME
    if not path.is_file():
        raise InvalidConfig(f"--generation-config takes auto, vllm or a folder; there is no file {path}")
    return path
