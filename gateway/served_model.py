"""What the gateway itself knows of the model: its names, text processing and sampling defaults."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

from pageloom.config import GatewayConfig
from pageloom.errors import ModelNotFound
from pageloom.model_files import locate_model
from pageloom.text_model import TextModel, TextOptions, load_text_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(TextModel):
    """`names` are what requests may call it, the first being the one that is listed."""

    names: tuple[str, ...]
    root: str
    created: int

    def require_name(self, name: str) -> None:
        """Raises ModelNotFound unless the model goes by this name."""
        if name not in self.names:
            raise ModelNotFound(
                f"the model {name!r} does not exist; served is {', '.join(map(repr, self.names))}", param="model"
            )


def load_served_model(config: GatewayConfig) -> ServedModel:
    """Reads tokenizer, template and defaults. Raises ModelLoadError or InvalidConfig."""
    files = locate_model(config.model, weights=False)
    options = TextOptions(
        chat_template=config.chat_template,
        generation_config=config.generation_config,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
    )
    text = replace(load_text_model(files, options), form_limits=config.form_limits)
    return ServedModel(
        names=config.served_model_names or (files.name,),
        root=files.name,
        created=int(time.time()),
        **{field.name: getattr(text, field.name) for field in fields(text)},
    )
