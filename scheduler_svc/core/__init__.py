"""The scheduler's pure core: decisions without I/O. The driver is its only caller."""

from scheduler_svc.core.emission import (
    ChoiceFacts,
    Committed,
    Ending,
    NewTokens,
    ScoredPrompt,
    Stats,
    StepFacts,
    WorkerStats,
)
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.scheduler import Scheduler

__all__ = [
    "ChoiceFacts",
    "Committed",
    "Ending",
    "Limits",
    "NewTokens",
    "Scheduler",
    "ScoredPrompt",
    "Stats",
    "StepFacts",
    "WorkerStats",
]
