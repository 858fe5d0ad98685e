"""Where did the time of one choice go? Waits and runs, in seconds after the request's arrival."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WaitReason(Enum):
    """Why a choice in the queue was not admitted."""

    QUEUE = "queue"  # others go first
    SLOTS = "slots"  # all slots of the worker were taken
    BLOCKS = "blocks"  # too few free KV blocks
    PREFIX = "prefix"  # another choice is computing the prefix that this one will share
    WORKER = "worker"  # no worker was attached, or none that could hold it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A stretch of time in the queue for one reason; `end_s` is None while it lasts.

    `num_ahead` of its tenant, `behind_request_ids` (the nearest few of these) and `num_missing_blocks` (of BLOCKS)
    are of its start.
    """

    reason: WaitReason
    start_s: float
    end_s: float | None = None
    num_ahead: int = 0
    behind_request_ids: tuple[str, ...] = ()
    num_missing_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A stay in a slot of one worker; `end_s` is None while it lasts.

    A held step is one that it could not take part in, for want of a KV block or of token budget.
    `preempted_by` names the request for whose growth its blocks were taken.
    """

    worker_id: str
    start_s: float
    end_s: float | None = None
    num_cached_tokens: int = 0
    num_steps: int = 0
    num_held_steps: int = 0
    preempted_by: str = ""
    worker_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The life of one choice so far."""

    waits: tuple[Wait, ...]
    runs: tuple[Run, ...]
    first_token_s: float | None = None
    finished_s: float | None = None
