"""Which code runs an architecture? Names as in config.json's model_type and GGUF's general.architecture."""

from __future__ import annotations

from worker_svc.models.llama import Llama

MODEL_CLASSES = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"), Llama)
