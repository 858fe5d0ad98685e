"""Which layers of a Hugging Face model are mixtures of experts, and of how many?

The keys are those of transformers' MixtralConfig, Qwen2MoeConfig and Qwen3MoeConfig.
"""

from __future__ import annotations

from pageloom.errors import ModelLoadError
from worker_svc.json_object import JsonObject
from worker_svc.models.config import ExpertsConfig


def experts_config(values: JsonObject, architecture: str, num_layers: int) -> ExpertsConfig | None:
    """None if the architecture has none, or no layer of this model. Raises ModelLoadError, naming the key."""
    if architecture == "mixtral":
        config = _mixtral(values, num_layers)
    elif architecture in ("qwen2_moe", "qwen3_moe"):
        config = _qwen(values, architecture, num_layers)
    else:
        return None
    if config.num_experts_per_token > config.num_experts:
        raise ModelLoadError(
            f"{values.path}: num_experts_per_tok is {config.num_experts_per_token}, "
            f"more than the {config.num_experts} experts that there are"
        )
    return config if config.layers else None


def _mixtral(values: JsonObject, num_layers: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=values.count("num_local_experts", 8),
        num_experts_per_token=values.count("num_experts_per_tok", 2),
        intermediate_size=values.count("intermediate_size"),
        normalize_weights=True,
        shared_intermediate_size=None,
        layers=frozenset(range(num_layers)),
    )


def _qwen(values: JsonObject, architecture: str, num_layers: int) -> ExpertsConfig:
    is_qwen2 = architecture == "qwen2_moe"
    default_experts, default_per_token, default_size = (60, 4, 1408) if is_qwen2 else (128, 8, 768)
    return ExpertsConfig(
        # Files that transformers 5 wrote have Mixtral's name for it.
        num_experts=values.count("num_experts", values.count("num_local_experts", default_experts)),
        num_experts_per_token=values.count("num_experts_per_tok", default_per_token),
        intermediate_size=values.count("moe_intermediate_size", default_size),
        normalize_weights=values.get("norm_topk_prob", bool, False),
        shared_intermediate_size=values.count("shared_expert_intermediate_size", 5632) if is_qwen2 else None,
        layers=_sparse_layers(values, num_layers),
    )


def _sparse_layers(values: JsonObject, num_layers: int) -> frozenset[int]:
    step = values.count("decoder_sparse_step", 1)
    dense = values.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        raise ModelLoadError(f"{values.path}: mlp_only_layers is {dense!r}, not a list of layer indices")
    return frozenset(range(step - 1, num_layers, step)) - frozenset(dense)
