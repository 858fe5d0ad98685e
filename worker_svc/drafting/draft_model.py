"""Which network guesses, where are its weights, and do its tokens mean what the model's do?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import structlog
import torch

from pageloom.config import Quantization, SpeculativeMethod, WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError
from pageloom.model_files import ModelFiles, locate_model
from pageloom.tokenizer import load_tokenizer
from pageloom_kernels.cpu.library import NoCpuLibrary
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.checkpoint import Checkpoint
from worker_svc.cpu_kernels import Kernels
from worker_svc.eagle3_checkpoint import is_eagle3, load_eagle3
from worker_svc.loader import load_model, open_checkpoint
from worker_svc.models.config import LlamaConfig
from worker_svc.models.cpu_llama import check_shape
from worker_svc.models.eagle3 import Eagle3Head
from worker_svc.models.model import Model
from worker_svc.quantization import kept_types

log = structlog.get_logger()

_FIRST_LAYERS = re.compile(r"layers:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftModel:
    """A loaded network. `kv` is the shape of what it keeps in each block, None if it uses the model's own."""

    network: Model | Eagle3Head
    kv: LlamaConfig | None
    weights_bytes: int

    def step_bytes(self, num_tokens: int, dtype: torch.dtype) -> int:
        """What a step of the model needs more, so that the network sees its hidden states."""
        if not isinstance(self.network, Eagle3Head):
            return 0
        return num_tokens * self.network.fusion_size * dtype.itemsize


def load_draft_model(
    config: WorkerConfig,
    files: ModelFiles,
    target: Model,
    target_config: LlamaConfig,
    kernels: Kernels,
    device: torch.device,
) -> DraftModel | None:
    """What --speculative-model names, for the model from `files`; None if nothing is named. `target` may be a part of
    that model, `target_config` is of the whole.

    Raises InvalidConfig or ModelLoadError.
    """
    name, method = config.speculative_model, config.speculative_method
    if name is None:
        return None
    first_layers = _FIRST_LAYERS.fullmatch(name)
    draft_files = None if first_layers is not None else locate_model(name)
    is_head = draft_files is not None and not draft_files.is_gguf and is_eagle3(draft_files.path)
    if method != SpeculativeMethod.none and is_head != (method == SpeculativeMethod.eagle3):
        kind = "is" if is_head else "is not"
        raise InvalidConfig(f"--speculative-method {method}: --speculative-model {name} {kind} an EAGLE-3 head")
    if is_head and config.pipeline_parallel_size > 1:
        raise InvalidConfig(
            f"--speculative-model {name} is an EAGLE-3 head, which does not go with --pipeline-parallel-size: give a "
            "model, or --speculative-method ngram or suffix"
        )
    if first_layers is not None:
        return _first_layers(int(first_layers[1]), target)
    assert draft_files is not None
    if is_head:
        return _load_head(draft_files, target_config, target.num_positions, kernels, device)
    return _load_small_model(
        config, draft_files, files, target.num_positions, target_config.vocab_size, kernels, device
    )


def _first_layers(num_layers: int, target: Model) -> DraftModel:
    if not 1 <= num_layers < target.config.num_layers:
        raise InvalidConfig(
            f"--speculative-model layers:{num_layers}: the model has {target.config.num_layers} layers; "
            f"give layers:1 to layers:{target.config.num_layers - 1}"
        )
    return DraftModel(network=target.first_layers(num_layers), kv=None, weights_bytes=0)


def _load_head(
    files: ModelFiles, target: LlamaConfig, num_positions: int, kernels: Kernels, device: torch.device
) -> DraftModel:
    head, weights_bytes = load_eagle3(
        files.path, target, num_positions=num_positions, dtype=kernels.dtype, device=device
    )
    return DraftModel(network=head, kv=head.config.layer, weights_bytes=weights_bytes)


def _load_small_model(
    config: WorkerConfig,
    files: ModelFiles,
    target_files: ModelFiles,
    num_positions: int,
    vocab_size: int,
    kernels: Kernels,
    device: torch.device,
) -> DraftModel:
    checkpoint = open_checkpoint(files)
    _check_vocabulary(files, checkpoint, target_files, vocab_size)
    pool = _usable_pool(config, checkpoint, kernels)
    if config.quantization == Quantization.gguf:
        # Asked of the model; this one may be no GGUF file.
        config = replace(config, quantization=Quantization.auto)
    model, weights_bytes = load_model(
        checkpoint,
        # Beyond the positions that it was made for it guesses worse.
        num_positions=num_positions,
        dtype=kernels.dtype,
        device=device,
        cpu_pool=pool,
        ggml_types=kept_types(config, checkpoint, pool),
        progress=lambda _done_bytes, _total_bytes: None,
    )
    return DraftModel(network=model, kv=model.config, weights_bytes=weights_bytes)


def _usable_pool(config: WorkerConfig, checkpoint: Checkpoint, kernels: Kernels) -> ThreadPool | None:
    if kernels.cpu_pool is not None:
        try:
            check_shape(checkpoint.config, config.block_size)
        except NoCpuLibrary as reason:
            log.warning("PyTorch computes the draft model instead of the CPU kernels", reason=str(reason))
            return None
    return kernels.cpu_pool


def _check_vocabulary(files: ModelFiles, checkpoint: Checkpoint, target_files: ModelFiles, vocab_size: int) -> None:
    """Raises ModelLoadError unless each token is the same in both models, as far as their files tell."""
    if checkpoint.config.vocab_size != vocab_size:
        raise ModelLoadError(
            f"the draft model {files.name} has {checkpoint.config.vocab_size} tokens and the model {target_files.name} "
            f"{vocab_size}; they must have the same vocabulary"
        )
    try:
        tokenizers = load_tokenizer(target_files), load_tokenizer(files)
    except ModelLoadError as error:
        log.warning("the draft model's tokens are not compared with the model's", reason=error.message)
        return
    for token_id in range(vocab_size):
        spelling, draft_spelling = (tokenizer.token(token_id) for tokenizer in tokenizers)
        if spelling != draft_spelling:
            raise ModelLoadError(
                f"token {token_id} is {draft_spelling!r} in the draft model {files.name} and {spelling!r} in the model "
                f"{target_files.name}; they must have the same vocabulary"
            )
