"""Chat messages -> the text of the prompt. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.schemas import ChatCompletionRequest, ChatMessage, TokenizeRequest
from gateway.served_model import ServedModel
from pageloom.errors import InvalidRequest


def render_messages(body: ChatCompletionRequest | TokenizeRequest, model: ServedModel) -> str:
    """The prompt's text. Raises InvalidRequest."""
    template = model.chat_template
    if template is None:
        raise InvalidRequest("the model has no chat template; use /v1/completions", param="messages")
    continuing = bool(body.continue_final_message)
    add_prompt = not continuing if body.add_generation_prompt is None else body.add_generation_prompt
    if continuing and add_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    knows_developer = template.mentions("'developer'") or template.mentions('"developer"')
    return template.render(
        [_message(index, message, knows_developer) for index, message in enumerate(body.messages or ())],
        add_generation_prompt=add_prompt,
        continue_final_message=continuing,
        variables=body.chat_template_kwargs,
    )


def _message(index: int, message: ChatMessage, knows_developer: bool) -> dict[str, object]:
    """The message as a template sees it: only the keys that are set, and content always a string."""
    role = "system" if message.role == "developer" and not knows_developer else message.role
    shown: dict[str, object] = {"role": role, "content": _content(index, message)}
    for key in ("name", "reasoning_content", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            shown[key] = value
    if message.tool_calls:
        shown["tool_calls"] = _tool_calls(index, message)
    return shown


def _content(index: int, message: ChatMessage) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts = []
    for part_index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            field = f"messages[{index}].content[{part_index}]"
            raise InvalidRequest(f"{field} is of type {part.type!r}; only text parts are supported", param=field)
        texts.append(part.text)
    return "\n".join(texts)


def _tool_calls(index: int, message: ChatMessage) -> list[dict[str, Any]]:
    """Templates want the arguments as an object; on the wire they are its JSON text."""
    calls = []
    for call_index, call in enumerate(message.tool_calls or ()):
        try:
            arguments = orjson.loads(call.function.arguments or "{}")
        except orjson.JSONDecodeError:
            field = f"messages[{index}].tool_calls[{call_index}].function.arguments"
            raise InvalidRequest(f"{field} is not JSON", param=field) from None
        calls.append(
            {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
        )
    return calls
