"""Chat messages -> the text of the prompt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageloom.chats.conversation import Conversation
from pageloom.chats.schemas import ChatMessage, TemplateOptions
from pageloom.errors import InvalidRequest
from pageloom.text_model import TextModel


def render_messages(
    messages: Sequence[ChatMessage], body: TemplateOptions, model: TextModel, tools: Sequence[dict[str, Any]] = ()
) -> str:
    """The prompt, for `Tokenizer.encode_prompt`: texts of special tokens that came with the request are marked in it.
    `tools` are what the model is shown of them. Raises InvalidRequest."""
    template = model.template_for(bool(tools))
    if template is None:
        raise InvalidRequest("the model has no chat template; give it a prompt instead of messages", param="messages")
    continuing = bool(body.continue_final_message)
    add_prompt = not continuing if body.add_generation_prompt is None else body.add_generation_prompt
    if continuing and add_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    if body.documents and not template.traits.documents:
        raise InvalidRequest("the model's chat template does not show documents", param="documents")
    special_text = model.tokenizer.special_text
    tools = special_text.marked_json(list(tools))
    return template.render(
        Conversation(template, model.tool_format, special_text).messages(messages, tools),
        add_generation_prompt=add_prompt,
        continue_final_message=continuing,
        tools=tools or None,
        documents=special_text.marked_json(body.documents) or None,
        variables=special_text.marked_json({**_effort(body), **(body.chat_template_kwargs or {})}),
    )


def _effort(body: TemplateOptions) -> dict[str, str | bool]:
    """For templates that know one of these variables."""
    effort = body.reasoning_effort
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
