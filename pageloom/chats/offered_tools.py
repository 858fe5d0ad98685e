"""What tools does a request offer? Each becomes a function, which is all that models know: a custom tool is one whose
only argument is its input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pageloom.chats.schemas import CustomDefinition, FunctionDefinition, Tool
from pageloom.errors import InvalidRequest
from pageloom.grammars.lark_text import without_anchors
from pageloom.parsing.custom_input import INPUT

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """`parameters` is the schema of its arguments, of which errors speak as `schema_field`; with `strict` they always
    follow it. `shown` is the tool as a template sees it."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool
    shown: Mapping[str, Any]
    schema_field: str
    is_custom: bool = False


def offered_tools(tools: Sequence[Tool]) -> tuple[OfferedTool, ...]:
    """Raises InvalidRequest if one is not complete, or two have one name."""
    offered = tuple(_offered(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(offered):
        if tool.name in seen:
            field = f"tools[{index}].{tools[index].type}.name"
            raise InvalidRequest(f"{field} {tool.name!r} is that of another tool", param=field)
        seen.add(tool.name)
    return offered


def shown_tools(tools: Iterable[OfferedTool]) -> list[dict[str, Any]]:
    """As a template sees them."""
    return [dict(tool.shown) for tool in tools]


def _offered(tool: Tool, field: str) -> OfferedTool:
    if tool.type == "custom" and tool.custom is not None:
        return _custom(tool.custom, f"{field}.custom")
    if tool.type == "function" and tool.function is not None:
        return _function(tool, tool.function, f"{field}.function")
    raise InvalidRequest(f"{field}.{tool.type} is required", param=f"{field}.{tool.type}")


def _function(tool: Tool, function: FunctionDefinition, field: str) -> OfferedTool:
    return OfferedTool(
        name=function.name,
        parameters=_NO_PARAMETERS if function.parameters is None else function.parameters,
        strict=bool(function.strict),
        # No model knows `strict`: it is for the server.
        shown=tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}),
        schema_field=f"{field}.parameters",
    )


def _custom(custom: CustomDefinition, field: str) -> OfferedTool:
    text: dict[str, Any] = {"type": "string"}
    if custom.format is not None and custom.format.type == "grammar":
        grammar = custom.format.grammar
        if grammar is None:
            raise InvalidRequest(f"{field}.format.grammar is required", param=f"{field}.format.grammar")
        if grammar.syntax != "regex":
            raise InvalidRequest(
                f"{field}.format.grammar.syntax must be regex: models write a tool's input as a JSON string, which a "
                "Lark grammar does not describe",
                param=f"{field}.format.grammar.syntax",
            )
        text["pattern"] = f"^(?:{without_anchors(grammar.definition)})$"
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    described = {} if custom.description is None else {"description": custom.description}
    return OfferedTool(
        name=custom.name,
        parameters=parameters,
        strict="pattern" in text,
        shown={"type": "function", "function": {"name": custom.name, **described, "parameters": parameters}},
        schema_field=f"{field}.format.grammar",
        is_custom=True,
    )
