"""A model's tokenizer with the names that programs know from transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pageloom.chat_template import ChatTemplate
from pageloom.errors import InvalidRequest
from pageloom.llm.argument_types import require_type, require_unicode
from pageloom.sampling_params import check_token_ids
from pageloom.text_model import TextModel


class TokenizerView:
    """Only what texts need: no tensors, no padding."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._tokenizer = model.tokenizer

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab_size(self) -> int:
        """Ids with a spelling; a model's logits may be wider."""
        return self._tokenizer.vocab_size

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._tokenizer.special_ids)

    @property
    def bos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._tokenizer.special_ids_by_text.get(self.eos_token or "")

    @property
    def chat_template(self) -> str | None:
        template = self._model.chat_template
        return None if template is None else template.source

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        require_type("text", text, str)
        require_unicode("text", text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        require_type("token_ids", token_ids, int | Sequence[int])
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        check_token_ids("token_ids", ids, self.vocab_size)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.token(token_id) for token_id in token_ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """The prompt of a chat, or its token ids. Raises InvalidRequest if the template refuses the messages."""
        template = self._model.template_for(bool(tools))
        if chat_template is not None:
            template = ChatTemplate(chat_template, self._tokenizer.special_tokens)
        if template is None:
            raise InvalidRequest("the model has no chat template", param="chat_template")
        text = template.render(
            conversation,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text
