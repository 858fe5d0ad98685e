"""Which setting of a service does an option set? The same for the command line and for `LLM`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from pageloom.config import ServiceConfig

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)

# Options that bear vLLM's name where our setting says more: its unit, or what it is.
_FIELD_NAMES = {
    "file_ttl": "file_ttl_s",
    "hop_latency": "hop_latency_s",
    "max_steps_in_flight": "max_num_steps_in_flight",
    "num_gpu_blocks_override": "num_blocks",
    "priority_ageing": "priority_ageing_s",
    "record": "record_path",
    "response_ttl": "response_ttl_s",
    "recording": "path",
    "scheduler": "scheduler_address",
    "shutdown_timeout": "drain_timeout_s",
    "step_timeout": "step_timeout_s",
    "uds": "socket_path",
}


def settings_of(kind: type[ConfigT], params: Mapping[str, Any], **derived: object) -> ConfigT:
    """A service's settings from options, by their names; what it has no setting for is left to others. Raises
    InvalidConfig."""
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {_FIELD_NAMES.get(name, name): _plain(value) for name, value in params.items()}
    return kind(**{name: value for name, value in {**values, **derived}.items() if name in fields})


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
