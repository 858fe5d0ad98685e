"""What model is in a GGUF file? Its metadata as a LlamaConfig, and the tokens that end a turn.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and llama.cpp's src/llama-arch.cpp.
"""

from __future__ import annotations

from typing import TypeVar

from pageloom.errors import ModelLoadError
from pageloom.gguf_file import GgufFile
from worker_svc.models.config import ExpertsConfig, LlamaConfig
from worker_svc.models.rope import (
    FrequencyDivisors,
    LinearScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)

_ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe")
# llama.cpp scales the chosen experts' weights to a sum of 1 in these; no key says so.
_NORMALIZED = ("llama", "qwen3moe")
_SOFTMAX_GATING = 1
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Files from before eot_token_id name only the end of a text; llama.cpp knows the end of a turn by
# these texts, too.
_END_OF_TURN_TEXTS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
_CONTROL_TOKEN = 3
T = TypeVar("T", int, float, str)


def gguf_architecture(file: GgufFile) -> str:
    """Raises ModelLoadError if the architecture is not one that `gguf_llama_config` takes."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path}: architecture {architecture!r} is not supported in GGUF files; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    return architecture


def gguf_llama_config(file: GgufFile, rope_divisors: tuple[float, ...] | None) -> LlamaConfig:
    """`rope_divisors` are the values of the tensor rope_freqs.weight, if the file has one.

    Raises ModelLoadError, naming the key, for what is missing, malformed or not supported.
    """
    keys = _Metadata(file, gguf_architecture(file))
    num_heads = keys.count("attention.head_count")
    hidden_size = keys.count("embedding_length")
    head_dim = keys.count("attention.key_length", hidden_size // num_heads)
    num_kv_heads = keys.count("attention.head_count_kv", num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.count(key, head_dim) != head_dim:
            raise ModelLoadError(f"{file.path}: {keys.prefix}{key} other than the head's {head_dim} is not supported")
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelLoadError(f"{file.path}: {num_heads} heads of {head_dim} and {num_kv_heads} KV heads do not fit")
    experts = _experts(keys)
    return LlamaConfig(
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length", None if experts is None else experts.intermediate_size),
        num_layers=keys.count("block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope=RopeConfig(theta=keys.positive("rope.freq_base", 10000.0), scaling=_rope_scaling(keys, rope_divisors)),
        max_position_embeddings=keys.count("context_length"),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        experts=experts,
    )


def gguf_sliding_window(file: GgufFile) -> int | None:
    """Longest context whose attention is full; None if it always is."""
    return _Metadata(file, gguf_architecture(file)).get("attention.sliding_window", int, 0) or None


def gguf_eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    """The ids that the file names as ends, then control tokens with the text of an end of turn."""
    found: dict[int, None] = {}
    for key in _EOS_KEYS:
        token_id = file.metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(token_id, int) and token_id >= 0:
            found[token_id] = None
    texts, kinds = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(texts, list) and isinstance(kinds, list):
        found |= dict.fromkeys(
            token_id
            for token_id, (text, kind) in enumerate(zip(texts, kinds, strict=False))
            if kind == _CONTROL_TOKEN and text in _END_OF_TURN_TEXTS
        )
    return tuple(found)


class _Metadata:
    """The keys of one architecture, checked where they are taken."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self.prefix = architecture + "."

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.file.metadata.get(self.prefix + key, default)
        if value is None:
            raise ModelLoadError(f"{self.file.path}: {self.prefix}{key} is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ModelLoadError(f"{self.file.path}: {self.prefix}{key} is {value!r}, not of type {kind.__name__}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        return self._above_zero(key, self.get(key, int, default))

    def positive(self, key: str, default: float | None = None) -> float:
        return self._above_zero(key, self.get(key, float, default))

    def _above_zero(self, key: str, value: T) -> T:
        if not isinstance(value, str) and not 0 < value < float("inf"):
            raise ModelLoadError(f"{self.file.path}: {self.prefix}{key} is {value}, it must be above 0")
        return value


def _experts(keys: _Metadata) -> ExpertsConfig | None:
    num_experts = keys.get("expert_count", int, 0)
    if num_experts == 0:
        return None
    per_token = keys.count("expert_used_count")
    if not per_token <= num_experts:
        raise ModelLoadError(
            f"{keys.file.path}: {keys.prefix}expert_used_count is {per_token}, more than the {num_experts} experts"
        )
    for key, supported in (("expert_gating_func", _SOFTMAX_GATING), ("expert_weights_scale", 1.0)):
        # Some converters write 0 for the scale that llama.cpp then leaves out.
        if keys.get(key, type(supported), supported) not in (supported, 0):
            raise ModelLoadError(f"{keys.file.path}: {keys.prefix}{key} other than {supported} is not supported")
    architecture, tensors = keys.prefix.rstrip("."), keys.file.tensors
    # Mixtral's experts are as large as a Llama's only network.
    only_size = keys.get("feed_forward_length", int, 0) or None
    inner_size, shared_size = keys.count("expert_feed_forward_length", only_size), None
    if architecture == "qwen2moe":
        shared_size = keys.count("expert_shared_feed_forward_length", only_size)
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_token=per_token,
        intermediate_size=inner_size,
        normalize_weights=architecture in _NORMALIZED,
        shared_intermediate_size=shared_size,
        layers=frozenset(
            index for index in range(keys.count("block_count")) if f"blk.{index}.ffn_gate_inp.weight" in tensors
        ),
    )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{file.path}: tensor token_embd.weight is missing")
    return embedding.shape[0]


def _rope_scaling(keys: _Metadata, rope_divisors: tuple[float, ...] | None) -> RopeScaling | None:
    if rope_divisors is not None:
        return FrequencyDivisors(divisors=rope_divisors)
    kind = keys.get("rope.scaling.type", str, "none")
    if kind == "none":
        return None
    factor = keys.positive("rope.scaling.factor")
    if kind == "linear":
        return LinearScaling(factor=factor)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            original_max_position_embeddings=keys.count("rope.scaling.original_context_length"),
            attention_factor=yarn_attention_factor(factor) * keys.positive("rope.scaling.attn_factor", 1.0),
            beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise ModelLoadError(
        f"{keys.file.path}: {keys.prefix}rope.scaling.type {kind!r} is not supported; supported are none, linear, yarn"
    )
