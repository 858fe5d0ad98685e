"""Which drafter do the settings ask for?"""

from __future__ import annotations

from pageloom.config import SpeculativeMethod, WorkerConfig
from worker_svc.drafting.drafter import Drafter
from worker_svc.drafting.ngram import NgramDrafter


def open_drafter(config: WorkerConfig) -> Drafter | None:
    """None if nothing is to be guessed."""
    if config.speculative_method == SpeculativeMethod.none:
        return None
    return NgramDrafter(min_len=config.prompt_lookup_min, max_len=config.prompt_lookup_max)
