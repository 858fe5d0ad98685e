"""Which drafter do the settings ask for?"""

from __future__ import annotations

import torch

from pageloom.config import SpeculativeMethod, WorkerConfig
from worker_svc.drafting.draft_coverage import DraftCoverage
from worker_svc.drafting.draft_model import DraftModel
from worker_svc.drafting.drafter import Drafter
from worker_svc.drafting.eagle3_drafter import Eagle3Drafter
from worker_svc.drafting.model_drafter import ModelDrafter
from worker_svc.drafting.ngram import NgramDrafter
from worker_svc.drafting.suffix_drafter import SuffixDrafter
from worker_svc.kv_cache import KvCache
from worker_svc.models.eagle3 import Eagle3Head
from worker_svc.models.model import Model


def open_drafter(
    config: WorkerConfig, draft: DraftModel | None, target: Model, cache: KvCache, device: torch.device
) -> Drafter | None:
    """None if nothing is to be guessed. `draft` is the network of --speculative-model, with its part of `cache`."""
    if draft is not None:
        return _open_network(config, draft, target, cache, device)
    if config.speculative_method == SpeculativeMethod.suffix:
        return SuffixDrafter(config.suffix_memory_bytes)
    if config.speculative_method == SpeculativeMethod.ngram:
        return NgramDrafter(min_len=config.prompt_lookup_min, max_len=config.prompt_lookup_max)
    return None


def _open_network(
    config: WorkerConfig, draft: DraftModel, target: Model, cache: KvCache, device: torch.device
) -> Drafter:
    network = draft.network
    if isinstance(network, Eagle3Head):
        return Eagle3Drafter(
            network,
            target.embed if network.embedding is None else network.embed,
            cache.draft_layers[0],
            max_num_seqs=config.max_num_seqs,
            device=device,
        )
    kv_caches, coverage = cache.layers[: network.config.num_layers], None
    if draft.kv is not None:
        kv_caches = cache.draft_layers
        coverage = DraftCoverage(
            max_num_seqs=config.max_num_seqs, num_blocks=cache.info.num_blocks, block_size=cache.info.block_size
        )
    return ModelDrafter(
        network, kv_caches, coverage, max_num_batched_tokens=config.max_num_batched_tokens, device=device
    )
