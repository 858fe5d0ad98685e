"""The tools of a request: what the model is shown of them, what it must call, and how its answer is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pageloom.chats.offered_tools import OfferedTool, offered_tools
from pageloom.chats.schemas import (
    AllowedToolsChoice,
    ChatOptions,
    NamedChoice,
    NamedCustomChoice,
    NamedFunctionChoice,
    ToolChoice,
)
from pageloom.chats.tool_grammar import AnswerGrammar
from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle
from pageloom.grammars.structured_outputs import constrained_field
from pageloom.parsing.message_parser import MessageFormat
from pageloom.text_model import TextModel
from pageloom.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The model is shown the tools of `offered` and may call those of `callable`; none if it must not call.
    `is_required` if it must, and `single` if it may call only once."""

    offered: tuple[OfferedTool, ...] = ()
    callable: tuple[OfferedTool, ...] = ()
    is_required: bool = False
    single: bool = False


NO_TOOLS = ToolUse()


def read_tool_use(body: ChatOptions, model: TextModel) -> ToolUse:
    """Raises InvalidRequest if the choice and the tools do not go together."""
    tools, choice = offered_tools(body.tools or ()), body.tool_choice
    if not tools and choice in (None, "none", "auto"):
        return NO_TOOLS
    if not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if choice == "none":
        return NO_TOOLS
    is_named = isinstance(choice, NamedFunctionChoice | NamedCustomChoice)
    template = model.template_for(True)
    return ToolUse(
        offered=tools,
        callable=_callable(choice, tools),
        is_required=is_named or "required" in (choice, _mode(choice)),
        # An answer that the template then refuses would end the conversation.
        single=is_named
        or body.parallel_tool_calls is False
        or (template is not None and not template.traits.parallel_calls),
    )


def _callable(choice: ToolChoice | None, tools: tuple[OfferedTool, ...]) -> tuple[OfferedTool, ...]:
    if isinstance(choice, NamedFunctionChoice | NamedCustomChoice):
        return (_named(choice, tools),)
    if isinstance(choice, AllowedToolsChoice):
        allowed = [_named(each, tools) for each in choice.allowed_tools.tools]
        return tuple({tool.name: tool for tool in allowed}.values())
    return tools


def _mode(choice: ToolChoice | None) -> str:
    return choice.allowed_tools.mode if isinstance(choice, AllowedToolsChoice) else ""


def _named(choice: NamedChoice, tools: tuple[OfferedTool, ...]) -> OfferedTool:
    is_custom = isinstance(choice, NamedCustomChoice)
    name = choice.custom.name if isinstance(choice, NamedCustomChoice) else choice.function.name
    for tool in tools:
        if tool.name == name and tool.is_custom == is_custom:
            return tool
    raise InvalidRequest(f"tool_choice names {name!r}, which is not one of the tools", param="tool_choice")


def form_with_parts(use: ToolUse, body: ChatOptions, model: TextModel, prompt: str) -> str:
    """The grammar of an answer that must have calls, or may have thinking or calls beside a form; empty if the tools
    and the thinking ask for nothing beyond the form that the request wants. Raises InvalidRequest if a schema cannot be
    followed, or that form leaves no place for calls."""
    reasoning = model.reasoning_format
    style = JsonStyle(limits=model.form_limits)
    thinks = _is_open(body, model, prompt)
    form = AnswerGrammar(model.tokenizer.special_ids_by_text, reasoning, style, thinks=thinks)
    tools = use.callable
    if use.is_required:
        return form.calls(model.tool_format, tools, single=use.single)
    schema = _json_schema(body, style)
    if tools and schema:
        return form.calls_or_json(model.tool_format, tools, schema, single=use.single)
    if tools and constrained_field(body):
        raise InvalidRequest(
            f"{constrained_field(body)} leaves no place for calls; set tool_choice to none", param="tool_choice"
        )
    if any(tool.strict for tool in tools) or len(tools) < len(use.offered):
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
        tool_parameters={tool.name: tool.parameters for tool in use.callable},
        custom_tools=frozenset(tool.name for tool in use.callable if tool.is_custom),
        single_call=use.single,
        marker_token_ids=frozenset(hidden.values()),
        hidden_markers=frozenset(hidden),
    )


def _special_tokens_in(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens whose text is part of one of these, with their ids."""
    joined = "\n".join(texts)
    return {text: token_id for text, token_id in tokenizer.special_ids_by_text.items() if text in joined}
