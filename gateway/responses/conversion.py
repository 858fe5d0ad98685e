"""Responses request -> chat request: the same templates, tools and constraints serve both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.openai.schemas import ChatCompletionRequest
from gateway.requests.chat_request import chat_request
from gateway.responses.schemas import LOGPROBS_INCLUDED, InputItem, InputPart, ResponseRequest
from pageloom.chats.schemas import ChatMessage, CustomCall, FunctionCall, ToolCall
from pageloom.errors import InvalidRequest
from pageloom.grammars.schemas import ResponseFormat

_SAME_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "stop", "stop_token_ids", "ignore_eos", "priority", "cache_salt", "chat_template_kwargs", "user"),
    "parallel_tool_calls",
)
# What fields of the chat request are called here, for errors.
FIELD_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_OWN_TOOLS = ("function", "custom")
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def items_of(body: ResponseRequest) -> list[InputItem]:
    """The items of this turn."""
    if isinstance(body.input, str):
        return [InputItem(role="user", content=body.input)]
    return list(body.input)


def to_chat(body: ResponseRequest, items: Sequence[InputItem]) -> ChatCompletionRequest:
    """`items` are those of the whole conversation. Raises InvalidRequest."""
    messages = messages_of(items)
    if body.instructions:
        messages.insert(0, ChatMessage(role="developer", content=body.instructions))
    wants_logprobs = LOGPROBS_INCLUDED in (body.include or ())
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME_FIELDS if getattr(body, name) is not None}
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return chat_request(
        model=body.model,
        messages=messages,
        stream=body.stream,
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=body.top_logprobs if wants_logprobs else None,
        response_format=_response_format(body),
        **_tools(body),
        **fields,
    )


def messages_of(items: Sequence[InputItem]) -> list[ChatMessage]:
    """Function calls belong to the assistant's message before them, reasoning to the one after it. A call that was
    cut off has no whole arguments, and nobody answers it."""
    messages: list[ChatMessage] = []
    reasoning: str | None = None
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type == "reasoning":
            reasoning = _text(item.content or item.summary, f"{where}.content") or None
        elif item.type == "message":
            messages.append(_message(item, reasoning, where))
            reasoning = None
        elif item.type in _CALLS and item.status == "incomplete":
            continue
        elif item.type in _CALLS:
            if not messages or messages[-1].role != "assistant" or reasoning is not None:
                messages.append(ChatMessage(role="assistant", reasoning_content=reasoning))
                reasoning = None
            if messages[-1].tool_calls is None:
                messages[-1].tool_calls = []
            messages[-1].tool_calls.append(_call(item, where))
        elif item.type in _OUTPUTS:
            messages.append(_output(item, where))
        else:
            raise InvalidRequest(
                f"{where}.type is {item.type[:40]!r}; message, reasoning, {', '.join(sorted(_CALLS | _OUTPUTS))} are "
                "supported",
                param=f"{where}.type",
            )
    return messages


def _message(item: InputItem, reasoning: str | None, where: str) -> ChatMessage:
    if item.role is None:
        raise InvalidRequest(f"{where}.role is required", param=f"{where}.role")
    return ChatMessage(
        role=item.role,
        content=_text(item.content, f"{where}.content"),
        reasoning_content=reasoning if item.role == "assistant" else None,
    )


def _call(item: InputItem, where: str) -> ToolCall:
    name, call_id = _required(item.name, f"{where}.name"), _required(item.call_id, f"{where}.call_id")
    if item.type == "custom_tool_call":
        return ToolCall(
            id=call_id, type="custom", custom=CustomCall(name=name, input=_required(item.input, f"{where}.input"))
        )
    arguments = _required(item.arguments, f"{where}.arguments")
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))


def _output(item: InputItem, where: str) -> ChatMessage:
    return ChatMessage(
        role="tool",
        tool_call_id=_required(item.call_id, f"{where}.call_id"),
        content=_text(item.output, f"{where}.output"),
    )


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise InvalidRequest(f"{where} is required", param=where)
    return value


def _text(content: str | list[InputPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text if part.type in _TEXT_PARTS else None
        if text is None:
            raise InvalidRequest(
                f"{where}[{index}] is of type {part.type[:40]!r}; only text parts are supported",
                param=f"{where}[{index}]",
            )
        texts.append(text)
    return "\n".join(texts)


def _response_format(body: ResponseRequest) -> ResponseFormat | None:
    given = body.text.format if body.text is not None else None
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    if given.schema_ is None:
        raise InvalidRequest("text.format.schema is required", param="text.format.schema")
    schema = {"name": given.name or "response", "schema": given.schema_, "strict": given.strict}
    return ResponseFormat.model_validate({"type": "json_schema", "json_schema": schema})


def _tools(body: ResponseRequest) -> dict[str, Any]:
    """Only the caller's own can be called here. Agents list those that OpenAI hosts as well and do not need them."""
    tools = [_tool(index, tool) for index, tool in enumerate(body.tools or ()) if tool.get("type") in _OWN_TOOLS]
    choice = body.tool_choice
    if not tools and not isinstance(choice, dict):
        # There is nothing that a choice of "required" could mean.
        return {"tool_choice": choice}
    return {"tools": tools or None, "tool_choice": _choice(choice) if isinstance(choice, dict) else choice}


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    """What a chat has one level deeper."""
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest(f"tools[{index}].name is required", param=f"tools[{index}].name")
    kind = tool["type"]
    inner = {key: value for key, value in tool.items() if key != "type"}
    form = tool.get("format")
    if kind == "custom" and isinstance(form, dict) and form.get("type") == "grammar":
        grammar = {key: value for key, value in form.items() if key != "type"}
        inner["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: inner}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    if kind in _OWN_TOOLS:
        return _named(choice)
    listed = choice.get("tools")
    if kind == "allowed_tools" and isinstance(listed, list):
        own = [_named(tool) for tool in listed if isinstance(tool, dict) and tool.get("type") in _OWN_TOOLS]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": own}}
    raise InvalidRequest(
        "tool_choice must be none, auto, required, name a function or a custom tool, or be allowed_tools",
        param="tool_choice",
    )


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": tool["type"], tool["type"]: {"name": tool.get("name")}}
