"""What the gateway says of itself and of its tokenizer, in vLLM's shapes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ServerLoad(BaseModel):
    server_load: int


class TokenizerInfo(BaseModel):
    """`tokenizer_class` is that of transformers which reads such a tokenizer. `chat_template` is the one in use."""

    tokenizer_class: Literal["PreTrainedTokenizerFast"] = "PreTrainedTokenizerFast"
    vocab_size: int
    model_max_length: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
