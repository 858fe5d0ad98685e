"""What every request and every part of one has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """Strict: "5" and true are not numbers. Unknown fields are kept aside in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())
