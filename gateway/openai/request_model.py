"""What every request body and every part of one has in common, and what some of them share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_MAX_METADATA_KEY_CHARS, _MAX_METADATA_VALUE_CHARS = 64, 512
# What a client may attach to what is stored for it.
Metadata = dict[
    Annotated[str, Field(max_length=_MAX_METADATA_KEY_CHARS)],
    Annotated[str, Field(max_length=_MAX_METADATA_VALUE_CHARS)],
]


class RequestModel(BaseModel):
    """Strict: "5" and true are not numbers. Unknown fields are kept aside in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())
