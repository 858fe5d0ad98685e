"""From files to a model that can run: opens a checkpoint, checks it against the model, fills the weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pageloom.errors import ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom.model_files import ModelFiles
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.checkpoint import Checkpoint, Weights
from worker_svc.hf_config import read_hf_config
from worker_svc.models import MODEL_CLASSES
from worker_svc.models.config import LlamaConfig
from worker_svc.models.cpu_llama import CpuLlama
from worker_svc.models.model import Destination, Model
from worker_svc.parallel.ranks import ALONE, Ranks
from worker_svc.safetensors_weights import SafetensorsWeights

Progress = Callable[[int, int], None]

# In a checkpoint, but computed here or equal to another tensor.
_REDUNDANT = re.compile(r".*\.rotary_emb\.inv_freq")


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Reads what the model is; no weights yet. Raises ModelLoadError."""
    if files.is_gguf:
        return _open_gguf(files)
    described = read_hf_config(files.path)
    weights = SafetensorsWeights(files.path)
    return Checkpoint(
        architecture=described.architecture,
        config=described.config,
        eos_token_ids=described.eos_token_ids,
        sliding_window=described.sliding_window,
        weights=weights,
        quantized=None,
        files=(files.path / "config.json", *weights.files),
    )


def load_model(
    checkpoint: Checkpoint,
    *,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    cpu_pool: ThreadPool | None,
    ggml_types: Mapping[str, int],
    progress: Progress,
    ranks: Ranks = ALONE,
) -> tuple[Model, int]:
    """Builds the model and fills it, one tensor at a time. Returns it and the bytes of its weights.

    With `cpu_pool` it runs in the library of CPU kernels, and tensors of `ggml_types`, by name, can stay quantized.
    `progress` gets the bytes of the files read so far and in all. Raises ModelLoadError, naming file and tensor,
    before anything is read if a tensor is missing, unknown or of another shape. Of `ranks` more than one, `checkpoint`
    is the part of this one.
    """
    weights = checkpoint.weights
    _check_size(weights, checkpoint.config)
    try:
        model = _build(checkpoint, num_positions, dtype, device, cpu_pool, ggml_types, ranks)
    except (RuntimeError, MemoryError) as error:
        raise ModelLoadError(f"{weights.path}: the model does not fit in memory: {_first_line(error)}") from None
    destinations = model.destinations()
    _check_tensors(weights, destinations, tied=checkpoint.config.tie_word_embeddings)
    weights_bytes = sum(
        destination.nbytes if isinstance(destination, Tensor) else weights.num_bytes(name)
        for name, destination in destinations.items()
    )
    try:
        _read_all(checkpoint, destinations, progress)
        # Packing replaces the tensors that these are views of, and would keep both while they exist.
        del destinations
        model.finish_loading()
    except MemoryError as error:
        raise ModelLoadError(f"{weights.path}: {_first_line(error)}") from None
    return model, weights_bytes


def _build(
    checkpoint: Checkpoint,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    cpu_pool: ThreadPool | None,
    ggml_types: Mapping[str, int],
    ranks: Ranks,
) -> Model:
    if cpu_pool is not None:
        return CpuLlama(checkpoint.config, num_positions=num_positions, pool=cpu_pool, ggml_types=ggml_types)
    model_class = MODEL_CLASSES[checkpoint.architecture]
    return model_class(checkpoint.config, num_positions=num_positions, dtype=dtype, device=device, ranks=ranks)


def _open_gguf(files: ModelFiles) -> Checkpoint:
    # The gguf package takes a while to import, and only these files need it.
    from worker_svc import gguf_config
    from worker_svc.gguf_weights import GgufWeights, read_rope_divisors

    file = read_gguf(files.path)
    architecture = gguf_config.gguf_architecture(file)
    config = gguf_config.gguf_llama_config(file, read_rope_divisors(file))
    interleaved = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if architecture == "llama" else {}
    weights = GgufWeights(file, interleaved)
    return Checkpoint(
        architecture=architecture,
        config=config,
        eos_token_ids=gguf_config.gguf_eos_token_ids(file),
        sliding_window=gguf_config.gguf_sliding_window(file),
        weights=weights,
        quantized=weights if weights.ggml_types else None,
        files=(files.path,),
    )


def _check_size(weights: Weights, config: LlamaConfig) -> None:
    """Sizes that no file of so many tensors can have would take forever to find missing one by one."""
    num_experts = 0 if config.experts is None else len(config.experts.layers) * config.experts.num_experts
    for count, noun in ((config.num_layers, "layers"), (num_experts, "experts in all layers")):
        if count > len(weights.names):
            raise ModelLoadError(f"{weights.path}: {len(weights.names)} tensors cannot be {count} {noun}")


def _check_tensors(weights: Weights, destinations: Mapping[str, Destination], *, tied: bool) -> None:
    for name, destination in destinations.items():
        if name not in weights.names:
            raise ModelLoadError(f"{weights.path}: tensor {name} is missing")
        if weights.shape(name) != tuple(destination.shape):
            raise ModelLoadError(
                f"{weights.describe(name)} has shape {weights.shape(name)}; "
                f"the model's configuration asks for {tuple(destination.shape)}"
            )
    for name in weights.names:
        redundant = _REDUNDANT.fullmatch(name) or (tied and name == "lm_head.weight")
        if name not in destinations and not redundant:
            raise ModelLoadError(f"{weights.describe(name)} is not part of the model that the configuration describes")


def _read_all(checkpoint: Checkpoint, destinations: Mapping[str, Destination], progress: Progress) -> None:
    weights, quantized = checkpoint.weights, checkpoint.quantized
    done_bytes, total_bytes = 0, sum(weights.num_bytes(name) for name in destinations)
    progress(0, total_bytes)
    for name, destination in destinations.items():
        if isinstance(destination, Tensor):
            weights.read(name, destination)
        else:
            assert quantized is not None
            destination.append(quantized.read_blocks(name))
        done_bytes += weights.num_bytes(name)
        progress(done_bytes, total_bytes)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
