"""How are a model's embeddings meant to be pooled? As the operator says, or as its sentence-transformers file does."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from pageloom.config import PoolingChoice
from pageloom.errors import InvalidConfig
from pageloom.model_files import ModelFiles
from pageloom.policies import Pooling

log = structlog.get_logger()

_FILE = Path("1_Pooling") / "config.json"
# sentence-transformers' flags, and the names that its later versions write as pooling_mode.
_FLAGS = {"pooling_mode_lasttoken": Pooling.last, "pooling_mode_mean_tokens": Pooling.mean}
_MODES = {"lasttoken": Pooling.last, "mean": Pooling.mean}


def choose_pooling(choice: str, files: ModelFiles) -> Pooling:
    """Raises InvalidConfig, naming the file, if what it says is not supported and `choice` leaves it to it."""
    if choice != PoolingChoice.auto:
        return Pooling(choice)
    path = files.path / _FILE
    if files.is_gguf or not path.is_file():
        return Pooling.last
    pooling = _read(path)
    log.info("embeddings are pooled as the model's folder says", pooling=pooling.value, path=str(path))
    return pooling


def _read(path: Path) -> Pooling:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{path}: cannot be read as JSON: {error}; use --pooling last or mean") from None
    if not isinstance(values, dict):
        raise InvalidConfig(f"{path}: holds no JSON object; use --pooling last or mean")
    asked = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    found = [_FLAGS[name] for name in asked if name in _FLAGS]
    mode = values.get("pooling_mode")
    if isinstance(mode, str):
        asked.append(mode)
        found += [_MODES[mode]] if mode in _MODES else []
    if len(asked) != 1 or len(found) != 1:
        raise InvalidConfig(
            f"{path}: asks for {', '.join(asked) or 'no pooling'}; supported are the last token or the mean of all: "
            "use --pooling last or mean"
        )
    return found[0]
