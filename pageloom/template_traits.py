"""What a chat template can show, found by rendering samples: a template is a program, and its text does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pageloom.errors import InvalidRequest

ROLES = ("system", "user", "assistant", "tool")
_USER = {"role": "user", "content": "probe-question"}
_ANSWER = {"role": "assistant", "content": "probe-answer"}
_ARGUMENTS = {"probe_key": "probe-argument"}
_ARGUMENTS_TEXT = '{"probe_key": "probe-argument"}'
# Mistral's templates demand nine characters.
_CALL_ID = "probe0001"
_RESULT = {"role": "tool", "tool_call_id": _CALL_ID, "name": "probe_tool", "content": "probe-result"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe-description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "probe"}}},
    },
}
_DOCUMENT = {"title": "probe-title", "text": "probe-document"}


class Render(Protocol):
    def __call__(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Raises InvalidRequest if the template refuses the messages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """Of which roles content may be a string, and of which a list of parts; whether the rest shows up in a prompt.
    With `arguments_as_text` a call's arguments must be JSON text, otherwise an object; without
    `parallel_calls` a message may have one call only."""

    string_roles: frozenset[str]
    parts_roles: frozenset[str]
    system: bool
    several_systems: bool
    tools: bool
    documents: bool
    calls: bool
    arguments_as_text: bool
    parallel_calls: bool
    results: bool


def probe(render: Render) -> TemplateTraits:
    """A template that refuses a sample does not show what is in it."""
    prober = _Prober(render)
    tools = prober.shows([_USER], "probe_tool", tools=[_TOOL])
    offered = [_TOOL] if tools else None
    as_objects = prober.shows([_USER, _call(_ARGUMENTS), _RESULT], "probe_key", "probe-argument", tools=offered)
    as_text = not as_objects and prober.shows([_USER, _call(_ARGUMENTS_TEXT), _RESULT], _ARGUMENTS_TEXT, tools=offered)
    calls = as_objects or as_text
    call = _call(_ARGUMENTS_TEXT if as_text else _ARGUMENTS)
    before_result = [_USER, call] if calls else [_USER, _ANSWER]
    return TemplateTraits(
        string_roles=frozenset(role for role in ROLES if prober.shows_content(role, "probe-one", "probe-one")),
        parts_roles=frozenset(role for role in ROLES if prober.shows_parts(role)),
        system=prober.shows([_system("probe-one"), _USER], "probe-one"),
        several_systems=prober.shows([_system("probe-one"), _system("probe-two"), _USER], "probe-one", "probe-two")
        and prober.shows([_system("probe-one"), _USER, _ANSWER, _system("probe-two"), _USER], "probe-two"),
        tools=tools,
        documents=prober.shows([_USER], "probe-document", documents=[_DOCUMENT]),
        calls=calls,
        arguments_as_text=as_text,
        parallel_calls=not calls or prober.shows([_USER, _twice(call)], "probe_tool", tools=offered),
        results=prober.shows([*before_result, _RESULT], "probe-result", tools=offered),
    )


class _Prober:
    def __init__(self, render: Render) -> None:
        self._render = render

    def shows(
        self,
        messages: Sequence[Mapping[str, object]],
        *needles: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> bool:
        text = self._text(messages, tools, documents)
        return all(needle in text for needle in needles)

    def shows_content(self, role: str, content: object, needle: str) -> bool:
        return needle in self._text(_around(role, content))

    def shows_parts(self, role: str) -> bool:
        """A list that is printed as such shows its keys as well."""
        parts = [{"type": "text", "text": "probe-one"}, {"type": "text", "text": "probe-two"}]
        text = self._text(_around(role, parts))
        return "probe-one" in text and "probe-two" in text and "'type'" not in text and '"type"' not in text

    def _text(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        try:
            return self._render(messages, add_generation_prompt=True, tools=tools, documents=documents)
        except InvalidRequest:
            return ""


def _system(content: str) -> dict[str, object]:
    return {"role": "system", "content": content}


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "probe_tool", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}],
    }


def _twice(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "tool_calls": [*message["tool_calls"], *message["tool_calls"]]}


def _around(role: str, content: object) -> list[Mapping[str, object]]:
    """A conversation in which a message of this role may stand."""
    message = {"role": role, "content": content}
    if role == "system":
        return [message, _USER]
    if role == "assistant":
        return [_USER, message, _USER]
    if role == "tool":
        return [_USER, _call(_ARGUMENTS), {**_RESULT, **message}]
    return [message]
