"""From files to a model that can run: opens a checkpoint, checks it against the model, fills the weights."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from pageloom.errors import ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom.model_files import ModelFiles
from worker_svc.checkpoint import Checkpoint, Weights
from worker_svc.hf_config import read_hf_config
from worker_svc.models import MODEL_CLASSES
from worker_svc.models.llama import Llama
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
        files=(files.path / "config.json", *weights.files),
    )


def load_model(
    checkpoint: Checkpoint, *, num_positions: int, dtype: torch.dtype, device: torch.device, progress: Progress
) -> tuple[Llama, int]:
    """Builds the model and fills it, one tensor at a time. Returns it and the bytes of its weights.

    `progress` gets the bytes of the files read so far and in all. Raises ModelLoadError, naming file
    and tensor, before anything is read if a tensor is missing, unknown or of another shape.
    """
    weights = checkpoint.weights
    if checkpoint.config.num_layers > len(weights.names):
        raise ModelLoadError(
            f"{weights.path}: {len(weights.names)} tensors cannot be {checkpoint.config.num_layers} layers"
        )
    try:
        model = MODEL_CLASSES[checkpoint.architecture](
            checkpoint.config, num_positions=num_positions, dtype=dtype, device=device
        )
    except (RuntimeError, MemoryError) as error:
        raise ModelLoadError(f"{weights.path}: the model does not fit in memory: {_first_line(error)}") from None
    destinations = model.destinations()
    _check_tensors(weights, destinations, tied=checkpoint.config.tie_word_embeddings)
    _read_all(weights, destinations, progress)
    weights_bytes = sum(tensor.nbytes for tensor in destinations.values())
    # Packing replaces the tensors that these are views of, and would keep both while they exist.
    destinations.clear()
    model.finish_loading()
    return model, weights_bytes


def _open_gguf(files: ModelFiles) -> Checkpoint:
    # The gguf package takes a while to import, and only these files need it.
    from worker_svc import gguf_config
    from worker_svc.gguf_weights import GgufWeights, read_rope_divisors

    file = read_gguf(files.path)
    architecture = gguf_config.gguf_architecture(file)
    config = gguf_config.gguf_llama_config(file, read_rope_divisors(file))
    interleaved = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if architecture == "llama" else {}
    return Checkpoint(
        architecture=architecture,
        config=config,
        eos_token_ids=gguf_config.gguf_eos_token_ids(file),
        sliding_window=gguf_config.gguf_sliding_window(file),
        weights=GgufWeights(file, interleaved),
        files=(files.path,),
    )


def _check_tensors(weights: Weights, destinations: dict[str, Tensor], *, tied: bool) -> None:
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


def _read_all(weights: Weights, destinations: dict[str, Tensor], progress: Progress) -> None:
    done_bytes, total_bytes = 0, sum(weights.num_bytes(name) for name in destinations)
    progress(0, total_bytes)
    for name, destination in destinations.items():
        weights.read(name, destination)
        done_bytes += weights.num_bytes(name)
        progress(done_bytes, total_bytes)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
