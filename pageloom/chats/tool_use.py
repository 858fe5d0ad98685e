"""The tools of a request: what the model is shown of them, what it must call, and how its answer is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pageloom.chats.schemas import ChatOptions, NamedToolChoice, Tool
from pageloom.chats.tool_grammar import AnswerGrammar, OfferedTool
from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle
from pageloom.grammars.structured_outputs import constrained_field
from pageloom.parsing.message_parser import MessageFormat
from pageloom.text_model import TextModel
from pageloom.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """`offered` is empty if the model must not call. `required` are the tools of which it must call one; `single`
    if it may call only once."""

    offered: tuple[Tool, ...] = ()
    required: tuple[Tool, ...] = ()
    single: bool = False


NO_TOOLS = ToolUse()


def read_tool_use(body: ChatOptions, model: TextModel) -> ToolUse:
    """Raises InvalidRequest if the choice and the tools do not go together."""
    tools, choice = tuple(body.tools or ()), body.tool_choice
    _require_distinct(tools)
    if not tools and choice in (None, "none", "auto"):
        return NO_TOOLS
    if not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if choice == "none":
        return NO_TOOLS
    required: tuple[Tool, ...] = ()
    if choice == "required":
        required = tools
    elif isinstance(choice, NamedToolChoice):
        required = (_named(choice.function.name, tools),)
    template = model.template_for(True)
    single = body.parallel_tool_calls is False or isinstance(choice, NamedToolChoice)
    # An answer that the template then refuses would end the conversation.
    single = single or (template is not None and not template.traits.parallel_calls)
    return ToolUse(offered=tools, required=required, single=single)


def shown_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """As a template sees them. `strict` is for the server, and no model knows it."""
    return [tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}) for tool in tools]


def form_with_parts(use: ToolUse, body: ChatOptions, model: TextModel, prompt: str) -> str:
    """The grammar of an answer that must have calls, or may have thinking or calls beside a form; empty if the tools
    and the thinking ask for nothing beyond the form that the request wants. Raises InvalidRequest if a schema cannot be
    followed, or that form leaves no place for calls."""
    reasoning = model.reasoning_format
    form = AnswerGrammar(model.tokenizer.special_ids_by_text, reasoning, thinks=_is_open(body, model, prompt))
    style = JsonStyle(limits=model.form_limits)
    # A function has no parameters but those that it lists, and small models make some up.
    of_arguments = replace(style, closed_objects=True)
    tools = [
        OfferedTool(field=f"tools[{use.offered.index(tool)}]", tool=tool, style=of_arguments)
        for tool in use.required or use.offered
    ]
    if use.required:
        return form.calls(model.tool_format, tools, single=use.single)
    schema = _json_schema(body, style)
    if tools and schema:
        return form.calls_or_json(model.tool_format, tools, schema, single=use.single)
    if tools and constrained_field(body):
        raise InvalidRequest(
            f"{constrained_field(body)} leaves no place for calls; set tool_choice to none", param="tool_choice"
        )
    if any(tool.function.strict for tool in use.offered):
        return form.text_with_calls(model.tool_format, tools, single=use.single)
    return form.json(schema) if schema and reasoning is not None else ""


def _json_schema(body: ChatOptions, style: JsonStyle) -> str:
    """That response_format asks for, for behind %json; empty if it does not."""
    wanted = body.response_format
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return ""
    schema = {"type": "object"} if wanted.json_schema is None else wanted.json_schema.schema_
    return grammars.inline_json_schema(schema, param="response_format.json_schema.schema", style=style)


def _is_open(body: ChatOptions, model: TextModel, prompt: str) -> bool:
    """Whether the answer begins inside the thinking."""
    marks = model.reasoning_format
    return marks is not None and marks.is_open_after(prompt, continuing=bool(body.continue_final_message))


def message_format(
    use: ToolUse, body: ChatOptions, model: TextModel, prompt: str, *, thinks: bool
) -> MessageFormat | None:
    """How to read the answer to a prompt; None if all of it is content."""
    tools = model.tool_format if use.offered else None
    reasoning = model.reasoning_format if thinks else None
    if tools is None and reasoning is None:
        return None
    markers = (*(tools.markers if tools else ()), *(reasoning.markers if reasoning else ()))
    hidden = _special_tokens_in(markers, model.tokenizer)
    return MessageFormat(
        reasoning=reasoning,
        starts_in_reasoning=_is_open(body, model, prompt),
        include_reasoning=body.include_reasoning is not False,
        tools=tools,
        tool_names=frozenset(tool.function.name for tool in use.offered),
        single_call=use.single,
        marker_token_ids=frozenset(hidden.values()),
        hidden_markers=frozenset(hidden),
    )


def _special_tokens_in(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens whose text is part of one of these, with their ids."""
    joined = "\n".join(texts)
    return {text: token_id for text, token_id in tokenizer.special_ids_by_text.items() if text in joined}


def _require_distinct(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            field = f"tools[{index}].function.name"
            raise InvalidRequest(f"{field} {tool.function.name!r} is that of another tool", param=field)
        seen.add(tool.function.name)


def _named(name: str, tools: tuple[Tool, ...]) -> Tool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    raise InvalidRequest(f"tool_choice names {name!r}, which is not one of the tools", param="tool_choice")
