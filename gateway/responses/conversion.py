"""Responses request -> chat request: the same templates, tools and constraints serve both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.openai.schemas import ChatCompletionRequest
from gateway.requests.chat_request import chat_request
from gateway.responses.schemas import LOGPROBS_INCLUDED, InputItem, InputPart, ResponseRequest
from pageloom.chats.schemas import ChatMessage, FunctionCall, ToolCall
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
        elif item.type == "function_call" and item.status == "incomplete":
            continue
        elif item.type == "function_call":
            if not messages or messages[-1].role != "assistant" or reasoning is not None:
                messages.append(ChatMessage(role="assistant", reasoning_content=reasoning, tool_calls=[]))
                reasoning = None
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), _call(item, where)]
        elif item.type == "function_call_output":
            messages.append(_output(item, where))
        else:
            raise InvalidRequest(
                f"{where}.type is {item.type[:40]!r}; message, function_call, function_call_output and reasoning are "
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
    name, arguments = _required(item.name, f"{where}.name"), _required(item.arguments, f"{where}.arguments")
    return ToolCall(
        id=_required(item.call_id, f"{where}.call_id"), function=FunctionCall(name=name, arguments=arguments)
    )


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
    """Only functions can be called here. Agents list the tools that OpenAI hosts as well and do not need them."""
    functions = []
    for index, tool in enumerate(body.tools or ()):
        if tool.get("type") == "function":
            if not isinstance(tool.get("name"), str):
                raise InvalidRequest(f"tools[{index}].name is required", param=f"tools[{index}].name")
            functions.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
    choice = body.tool_choice
    if not functions and not isinstance(choice, dict):
        # There is nothing that a choice of "required" could mean.
        return {"tool_choice": choice}
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise InvalidRequest("tool_choice must be none, auto, required, or name a function", param="tool_choice")
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {"tools": functions or None, "tool_choice": choice}
