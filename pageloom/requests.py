"""What callers ask of the engine, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.plan import CacheInfo, ModelInfo
from pageloom.policies import Pooling
from pageloom.sampling_params import SamplingParams

MAX_TENANT_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A prompt and how to go on from it. `resume` maps a choice to the tokens it already has.

    `deadline_s` counts from the arrival. With `wait_for_tokens` no step of a choice is planned before the
    token of its last one is known. With `pooling` nothing is generated: the one choice ends with the prompt's
    embedding, and `sampling` means nothing.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    cache_salt: str = ""
    resume: tuple[tuple[int, tuple[int, ...]], ...] = ()
    tenant: str = ""
    deadline_s: float | None = None
    include_timeline: bool = False
    wait_for_tokens: bool = False
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One attached worker."""

    worker_id: str
    epoch: int
    cache: CacheInfo
    num_free_blocks: int
    num_running: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What the scheduler serves, and how full it is. `model` is None until a worker has attached."""

    version: str
    model: ModelInfo | None
    workers: tuple[WorkerInfo, ...]
    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draining: bool
