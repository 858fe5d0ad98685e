"""Which code runs an architecture? Names as in config.json's model_type and GGUF's general.architecture."""

from __future__ import annotations

from worker_svc.models.llama import Llama

_LLAMA_FAMILY = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2moe", "qwen3", "qwen3_moe", "qwen3moe")
MODEL_CLASSES = dict.fromkeys(_LLAMA_FAMILY, Llama)
