"""Keys that an answer has only if it has their value."""

from __future__ import annotations

from pydantic import Field

IF_ANY = Field(exclude_if=lambda value: value is None)
