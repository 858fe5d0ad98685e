"""What a service process tells the parent that started it: one JSON line for each of these values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A worker reads its weights."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReady:
    """The scheduler listens at `address`, "host:port", and perhaps at `socket_address`, "unix:/path"."""

    address: str
    socket_address: str | None = None
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker has attached, with this model and KV memory; `kernels` names what computes."""

    dtype: str
    kernels: str
    max_model_len: int
    weights_bytes: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReady:
    """The gateway listens at `url`; `sampling_defaults` says what holds for what a request leaves out."""

    url: str
    sampling_defaults: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The service cannot start; `message` is one line for people."""

    message: str


Ready = SchedulerReady | WorkerReady | GatewayReady
Status = Loading | Ready | Failed

_TYPES: dict[str, type[Status]] = {
    kind.__name__: kind for kind in (Loading, SchedulerReady, WorkerReady, GatewayReady, Failed)
}


def encode(status: Status) -> bytes:
    return json.dumps({"status": type(status).__name__, **asdict(status)}).encode() + b"\n"


def decode(line: bytes) -> Status:
    fields = json.loads(line)
    return _TYPES[fields.pop("status")](**fields)
