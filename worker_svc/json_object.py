"""A JSON object of a model folder, whose values are checked where they are taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pageloom.errors import ModelLoadError

T = TypeVar("T", int, float, bool, str)


class JsonObject:
    """Methods raise ModelLoadError, naming the file and the key."""

    def __init__(self, path: Path, values: dict[str, object]) -> None:
        self.path = path
        self.values = values

    @classmethod
    def read(cls, path: Path) -> JsonObject:
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from None
        if not isinstance(values, dict):
            raise ModelLoadError(f"{path}: holds no JSON object")
        return cls(path, values)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of `key`; the default if it is missing or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(f"{self.path}: {key} is {value!r}, not of type {kind.__name__}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0. Without a default the key must be there."""
        if default is None and self.values.get(key) is None:
            raise ModelLoadError(f"{self.path}: {key} is missing")
        value = self.get(key, int, default or 0)
        if value < 1:
            raise ModelLoadError(f"{self.path}: {key} is {value}, it must be at least 1")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0. Without a default the key must be there."""
        if default is None and self.values.get(key) is None:
            raise ModelLoadError(f"{self.path}: {key} is missing")
        value = self.get(key, float, default or 0.0)
        if not 0 < value < float("inf"):
            raise ModelLoadError(f"{self.path}: {key} is {value}, it must be above 0")
        return value

    def child(self, key: str) -> JsonObject:
        """The object at `key`; an empty one if it is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise ModelLoadError(f"{self.path}: {key} is {value!r}, not an object")
        return JsonObject(self.path, value or {})
