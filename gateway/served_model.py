"""What the gateway itself knows of the model: its names, text processing and sampling defaults."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pageloom.chat_template import ChatTemplate, load_chat_template
from pageloom.config import GatewayConfig
from pageloom.errors import InvalidConfig, InvalidRequest, ModelLoadError, ModelNotFound
from pageloom.model_files import ModelFiles, locate_model
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import Tokenizer, load_tokenizer, read_json_object

# generation_config.json's name -> ours.
_DEFAULT_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
_GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """`names` are what requests may call it, the first being the one that is listed. `defaults` hold
    for what a request leaves out; `defaults_source` says for people where they come from."""

    names: tuple[str, ...]
    root: str
    created: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: SamplingParams
    defaults_source: str

    def require_name(self, name: str) -> None:
        """Raises ModelNotFound unless the model goes by this name."""
        if name not in self.names:
            raise ModelNotFound(
                f"the model {name!r} does not exist; served is {', '.join(map(repr, self.names))}", param="model"
            )


def load_served_model(config: GatewayConfig) -> ServedModel:
    """Reads tokenizer, template and defaults. Raises ModelLoadError or InvalidConfig."""
    files = locate_model(config.model, weights=False)
    tokenizer = load_tokenizer(files)
    defaults, source = _sampling_defaults(files, config.generation_config)
    return ServedModel(
        names=config.served_model_names or (files.name,),
        root=files.name,
        created=int(time.time()),
        tokenizer=tokenizer,
        chat_template=load_chat_template(tokenizer, config.chat_template),
        defaults=defaults,
        defaults_source=source,
    )


def _sampling_defaults(files: ModelFiles, source: str) -> tuple[SamplingParams, str]:
    """The defaults, and one line on what they are and where they come from."""
    path = _generation_config_path(files, source)
    found = {} if path is None else read_json_object(path)
    values = {ours: found[theirs] for theirs, ours in _DEFAULT_NAMES.items() if found.get(theirs) is not None}
    try:
        defaults = SamplingParams(**values)  # type: ignore[arg-type]
    except (InvalidRequest, TypeError) as error:
        whose = "the model's generation_config.json" if source == "auto" else path
        raise ModelLoadError(f"{whose} is not valid: {error}") from None
    if not values:
        reason = "--generation-config vllm" if source == "vllm" else "none come with the model"
        return defaults, f"temperature=1.0, top_p=1.0 ({reason})"
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    return defaults, f"{shown} (from {'the model' if source == 'auto' else path}; a request's own values win)"


def _generation_config_path(files: ModelFiles, source: str) -> Path | None:
    if source == "vllm":
        return None
    if source == "auto":
        return None if files.is_gguf else files.path / _GENERATION_CONFIG
    path = Path(source).expanduser() / _GENERATION_CONFIG
    if not path.is_file():
        raise InvalidConfig(f"--generation-config takes auto, vllm or a folder; there is no file {path}")
    return path
