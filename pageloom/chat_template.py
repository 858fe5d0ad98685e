"""Messages -> prompt text, by the model's own Jinja template, with the semantics of transformers'
`apply_chat_template`.

A template is a program that came with a model file: `template_sandbox.py` bounds what it may do. The
caller keeps it off the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from pageloom.errors import InvalidConfig, InvalidRequest, ModelLoadError
from pageloom.template_sandbox import SandboxedTemplate
from pageloom.template_traits import TemplateTraits, probe
from pageloom.tokenizer import DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE, Tokenizer

JsonScalar = str | int | float | bool | None
Message = Mapping[str, object]

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_RESERVED_NAMES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
)


class ChatTemplate:
    """A compiled template. Raises ModelLoadError if its source is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = SandboxedTemplate(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"the chat template is not valid: line {error.lineno}: {error.message}") from None

    @cached_property
    def traits(self) -> TemplateTraits:
        return probe(self.render)

    def mentions(self, text: str) -> bool:
        """Whether the source contains a text, such as the name of a role it would have to know."""
        return text in self.source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, JsonScalar] | None = None,
    ) -> str:
        """The prompt. Raises InvalidRequest with the template's own words if it refuses the messages,
        or if it runs longer or writes more than a template may."""
        self._check_names(variables or {})
        if continue_final_message:
            messages = _with_continue_tag(messages)
        text = self._run(
            {
                **self._special_tokens,
                **(variables or {}),
                "messages": messages,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _cut_at_continue_tag(text) if continue_final_message else text

    def _check_names(self, variables: Mapping[str, JsonScalar]) -> None:
        for name in variables:
            if name in _RESERVED_NAMES or name in self._special_tokens or name in self._template.global_names:
                raise InvalidRequest(
                    f"chat_template_kwargs cannot set {name!r}, which the server sets", param="chat_template_kwargs"
                )

    def _run(self, variables: Mapping[str, object]) -> str:
        try:
            return self._template.render(variables)
        except Exception as error:
            # Whatever a foreign program raises, the messages made it do so.
            reason = str(error) or type(error).__name__
            raise InvalidRequest(f"the chat template refused the messages: {reason}", param="messages") from error


def load_chat_template(tokenizer: Tokenizer, override: str | None) -> ChatTemplate | None:
    """The model's template, or the one that the operator gave as a file or as its text; None if there is none."""
    source = tokenizer.chat_templates.get(DEFAULT_TEMPLATE)
    if override is not None:
        source = _read_override(override)
    return None if source is None else ChatTemplate(source, tokenizer.special_tokens)


def load_tool_use_template(tokenizer: Tokenizer, override: str | None) -> ChatTemplate | None:
    """The template that the model has for requests with tools, if it has one of its own and the operator gave none."""
    source = tokenizer.chat_templates.get(TOOL_USE_TEMPLATE)
    return None if source is None or override is not None else ChatTemplate(source, tokenizer.special_tokens)


def _read_override(value: str) -> str:
    if "{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"--chat-template takes a file or Jinja text; {value!r} is neither: {error}") from None


def _with_continue_tag(messages: Sequence[Message]) -> list[Message]:
    content = messages[-1].get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + _CONTINUE_TAG}]
    if isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
        last = {**content[-1], "text": content[-1]["text"] + _CONTINUE_TAG}
        return [*messages[:-1], {**messages[-1], "content": [*content[:-1], last]}]
    raise InvalidRequest("continue_final_message needs a final message with text", param="continue_final_message")


def _cut_at_continue_tag(text: str) -> str:
    start = text.rfind(_CONTINUE_TAG.strip())
    if start < 0:
        raise InvalidRequest(
            "continue_final_message does not work with this chat template: it drops the final message's end",
            param="continue_final_message",
        )
    # A template that trims the message has trimmed the tag's space, and wants the text before it trimmed too.
    return text[:start] if text.startswith(_CONTINUE_TAG, start) else text[:start].rstrip()
