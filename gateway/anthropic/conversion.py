"""Anthropic's request -> chat request: the same templates, tools and constraints serve both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.anthropic.schemas import Block, Message, MessagesRequest, OutputConfig, PromptFields, Tool
from gateway.openai.schemas import ChatCompletionRequest
from gateway.requests.chat_request import chat_request
from pageloom.chats.schemas import ChatMessage, FunctionCall, ToolCall
from pageloom.errors import InvalidRequest

# What fields of the chat request are called here, for errors.
FIELD_NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "tools[].parameters": "input_schema",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat(body: PromptFields) -> ChatCompletionRequest:
    """Raises InvalidRequest. A final message of the assistant is the beginning of the answer."""
    messages = [ChatMessage(role="system", content=_text(body.system, "system"))] if body.system else []
    for index, message in enumerate(body.messages):
        convert = _from_user if message.role == "user" else _from_assistant
        messages += convert(message, f"messages[{index}].content")
    fields: dict[str, Any] = {}
    if messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if body.thinking is not None:
        # The name that the templates of such models give it.
        fields["chat_template_kwargs"] = {"enable_thinking": body.thinking.type != "disabled"}
    if isinstance(body, MessagesRequest):
        fields |= _generation_fields(body)
    return chat_request(model=body.model, messages=messages, **_tools(body), **fields)


def _generation_fields(body: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "stream": body.stream,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
    }
    output = body.output_config or OutputConfig()
    if output.effort is not None:
        fields["reasoning_effort"] = output.effort
    if output.format is not None:
        schema = {"name": "output", "schema": output.format.schema_, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _from_user(message: Message, where: str) -> list[ChatMessage]:
    """The results of tools come first: they answer the message before."""
    if isinstance(message.content, str):
        return [ChatMessage(role="user", content=message.content)]
    results, texts = [], []
    for index, block in enumerate(message.content):
        if block.type == "tool_result":
            results.append(_tool_result(block, f"{where}[{index}]"))
        else:
            texts.append(_block_text(block, f"{where}[{index}]"))
    return [*results, ChatMessage(role="user", content="\n".join(texts))] if texts or not results else results


def _tool_result(block: Block, where: str) -> ChatMessage:
    if block.tool_use_id is None:
        raise InvalidRequest(f"{where}.tool_use_id is required", param=f"{where}.tool_use_id")
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=_text(block.content, f"{where}.content"))


def _from_assistant(message: Message, where: str) -> list[ChatMessage]:
    if isinstance(message.content, str):
        return [ChatMessage(role="assistant", content=message.content)]
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(message.content):
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_tool_use(block, f"{where}[{index}]"))
        elif block.type != "redacted_thinking":
            texts.append(_block_text(block, f"{where}[{index}]"))
    return [
        ChatMessage(
            role="assistant",
            content="\n".join(texts),
            reasoning_content="\n".join(thoughts) or None,
            tool_calls=calls or None,
        )
    ]


def _tool_use(block: Block, where: str) -> ToolCall:
    for name in ("id", "name", "input"):
        if getattr(block, name) is None:
            raise InvalidRequest(f"{where}.{name} is required", param=f"{where}.{name}")
    return ToolCall(
        id=block.id, function=FunctionCall(name=block.name or "", arguments=orjson.dumps(block.input).decode())
    )


def _text(content: str | Sequence[Block] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_block_text(block, f"{where}[{index}]") for index, block in enumerate(content))


def _block_text(block: Block, where: str) -> str:
    if block.type == "text" and block.text is None:
        raise InvalidRequest(f"{where}.text is required", param=f"{where}.text")
    if block.type != "text" or block.text is None:
        raise InvalidRequest(f"{where} is of type {block.type[:40]!r}; only text is supported here", param=where)
    return block.text


def _tools(body: PromptFields) -> dict[str, Any]:
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    fields: dict[str, Any] = {"tools": tools or None}
    choice = body.tool_choice
    if choice is None:
        return fields
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _CHOICES[choice.type]
    return fields


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{where}.type is {tool.type!r}: tools that Anthropic runs are not here", param=f"{where}.type"
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
