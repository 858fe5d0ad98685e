"""The messages of a request -> messages as the model's chat template takes them. Pure.

A template gets what it can show as the client sent it; what it has no place for is put where it has one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import orjson

from pageloom.chat_template import ChatTemplate
from pageloom.chats.schemas import ChatMessage, ToolCall
from pageloom.errors import InvalidRequest
from pageloom.parsing.custom_input import INPUT
from pageloom.parsing.tool_formats import MISTRAL_ID_LEN, ToolFormat
from pageloom.special_text import SpecialText

Message = dict[str, Any]
Content = str | list[dict[str, str]]


class Conversation:
    """Turns the messages of one request into those of one template."""

    def __init__(self, template: ChatTemplate, tool_format: ToolFormat, special_text: SpecialText) -> None:
        self._traits = template.traits
        self._special_text = special_text
        self._tool_format = tool_format
        self._knows_developer = template.mentions("'developer'") or template.mentions('"developer"')
        self._wants_short_ids = template.mentions("length != 9")

    def messages(self, given: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[Message]:
        """`tools` are told in words if the template does not show them. Raises InvalidRequest."""
        shown = [self._message(index, message) for index, message in enumerate(given)]
        if tools and not self._traits.tools:
            shown = self._with_instruction(shown, _tool_instruction(tools, self._tool_format))
        if not self._traits.several_systems:
            shown = _with_one_system(shown)
        return shown if self._traits.results else _with_results_as_users(shown)

    def _message(self, index: int, message: ChatMessage) -> Message:
        """Only the keys that are set; an absent content is an empty one."""
        role = "system" if message.role == "developer" and not self._knows_developer else message.role
        shown: Message = {"role": role, "content": self._content(index, role, message)}
        if message.name is not None:
            shown["name"] = self._special_text.marked(message.name)
        reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
        if reasoning is not None:
            shown["reasoning_content"] = self._special_text.marked(reasoning)
        if message.tool_call_id is not None:
            shown["tool_call_id"] = self._id(message.tool_call_id)
        if message.tool_calls:
            self._add_calls(index, message.tool_calls, shown)
        return shown

    def _content(self, index: int, role: str, message: ChatMessage) -> Content:
        if not isinstance(message.content, list):
            text = self._special_text.marked(message.content or "")
            takes_only_parts = role not in self._traits.string_roles and role in self._traits.parts_roles
            return [{"type": "text", "text": text}] if takes_only_parts else text
        texts = []
        for part_index, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                field = f"messages[{index}].content[{part_index}]"
                raise InvalidRequest(f"{field} is of type {part.type!r}; only text parts are supported", param=field)
            texts.append(part.text)
        texts = self._special_text.marked_parts(texts)
        if texts and role in self._traits.parts_roles:
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)

    def _add_calls(self, index: int, calls: Sequence[ToolCall], shown: Message) -> None:
        functions = [self._function(f"messages[{index}].tool_calls[{i}]", call) for i, call in enumerate(calls)]
        if self._traits.calls:
            ids = [{} if call.id is None else {"id": self._id(call.id)} for call in calls]
            shown["tool_calls"] = [
                {**call_id, "type": "function", "function": function}
                for call_id, function in zip(ids, functions, strict=True)
            ]
        else:
            written = [(each["name"], json.dumps(each["arguments"], ensure_ascii=False)) for each in functions]
            shown["content"] = _joined(shown["content"], self._tool_format.write(written), "\n")

    def _function(self, field: str, call: ToolCall) -> dict[str, Any]:
        """Templates want the arguments as an object, some as its JSON text, which they are on the wire."""
        name, given = _name_and_arguments(field, call)
        try:
            arguments = orjson.loads(given)
        except orjson.JSONDecodeError:
            field += ".function.arguments"
            raise InvalidRequest(f"{field} is not JSON", param=field) from None
        return {
            "name": self._special_text.marked(name),
            "arguments": self._special_text.marked_json(given if self._traits.arguments_as_text else arguments),
        }

    def _id(self, given: str) -> str:
        """Mistral's templates refuse ids of another length, which come from other models' calls."""
        if not self._wants_short_ids or len(given) == MISTRAL_ID_LEN:
            return self._special_text.marked(given)
        return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:MISTRAL_ID_LEN]

    def _with_instruction(self, messages: list[Message], instruction: str) -> list[Message]:
        """At the end of the first system message or, if the template has none, before the first user's words."""
        if not self._traits.system:
            for index, message in enumerate(messages):
                if message["role"] == "user":
                    content = _joined(instruction, message["content"], "\n\n")
                    return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
            return messages
        if messages[0]["role"] != "system":
            return [{"role": "system", "content": instruction}, *messages]
        return [{**messages[0], "content": _joined(messages[0]["content"], instruction, "\n\n")}, *messages[1:]]


def _name_and_arguments(field: str, call: ToolCall) -> tuple[str, str]:
    """Of the function that the model has called; a custom tool is one whose only argument is its input."""
    if call.type == "custom" and call.custom is not None:
        return call.custom.name, json.dumps({INPUT: call.custom.input}, ensure_ascii=False)
    if call.type == "function" and call.function is not None:
        return call.function.name, call.function.arguments or "{}"
    raise InvalidRequest(f"{field}.{call.type} is required", param=f"{field}.{call.type}")


def _tool_instruction(tools: Sequence[dict[str, Any]], tool_format: ToolFormat) -> str:
    """What a model is told of tools that its template does not show."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = tool_format.write([("<function-name>", "<arguments-as-JSON-object>")])
    return (
        "# Tools\n\nYou may call one or more of these functions to answer the user:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        f"To call a function, write its name and its arguments, and nothing else, like this:\n{example}\n\n"
        "You then get the result, and can answer with it."
    )


def _with_one_system(messages: list[Message]) -> list[Message]:
    """The content of all system messages in the first place, for templates that take only one."""
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) < 2:
        return messages
    content = _all_joined([message["content"] for message in systems], "\n\n")
    others = [message for message in messages if message["role"] != "system"]
    return [{**systems[0], "content": content}, *others]


def _with_results_as_users(messages: list[Message]) -> list[Message]:
    """Results of calls as the user's words, for templates that do not know the role; those of one turn together."""
    shown: list[Message] = []
    for is_result, turn in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            texts = [f"<tool_response>\n{_text(message['content'])}\n</tool_response>" for message in turn]
            shown.append({"role": "user", "content": "\n".join(texts)})
        else:
            shown += turn
    return shown


def _all_joined(contents: Sequence[Content], separator: str) -> Content:
    """Those that are not empty: a string if all are, else the parts of all."""
    said = [content for content in contents if content]
    texts = [content for content in said if isinstance(content, str)]
    if len(texts) == len(said):
        return separator.join(texts)
    parts = _parts(said[0])
    for content in said[1:]:
        parts += [*_parts(separator), *_parts(content)]
    return parts


def _joined(first: Content, second: Content, separator: str) -> Content:
    return _all_joined((first, second), separator)


def _parts(content: Content) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
