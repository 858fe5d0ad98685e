"""What a client may attach to what is stored for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MAX_METADATA_KEY_CHARS, _MAX_METADATA_VALUE_CHARS = 64, 512
Metadata = dict[
    Annotated[str, Field(max_length=_MAX_METADATA_KEY_CHARS)],
    Annotated[str, Field(max_length=_MAX_METADATA_VALUE_CHARS)],
]
