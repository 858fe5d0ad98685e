"""What one prompt, or one chat, asks of a model: all that texts have to do with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pageloom import sampling_params
from pageloom.bad_words import bad_word_ids
from pageloom.chat_template import ChatTemplate
from pageloom.chats.offered_tools import shown_tools
from pageloom.chats.rendering import render_messages
from pageloom.chats.schemas import ChatOptions
from pageloom.chats.tool_use import form_with_parts, message_format, read_tool_use
from pageloom.errors import InvalidRequest, ModelLoadError
from pageloom.field_errors import naming_fields
from pageloom.grammars.grammar import parse_json
from pageloom.grammars.structured_outputs import constrained_field, grammar_of
from pageloom.llm.argument_types import require_json, require_type, require_unicode
from pageloom.llm.prompts import Prompt, checked
from pageloom.llm.sampling_params import SamplingParams
from pageloom.parsing.message_parser import MessageFormat
from pageloom.plan import ModelInfo
from pageloom.special_text import MARK
from pageloom.text_model import TextModel

_HELD_AS_JSON = {"tools", "json_schema", "documents"}
ChatMessages = Sequence[Mapping[str, Any]]


class ChatArguments(TypedDict, total=False):
    """What `chat` takes for the messages besides parameters: OpenAI's and vLLM's names and meaning.

    `tools` and `tool_choice` ("none", "auto", "required" or a function) offer and demand calls, `parallel_tool_calls`
    False allows one; `json_schema` is the form of the answer. `chat_template` is Jinja text instead of the model's,
    `chat_template_kwargs` its variables. `add_generation_prompt` is True unless `continue_final_message`.
    """

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    json_schema: Mapping[str, Any] | str | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    documents: Sequence[Mapping[str, Any]] | None
    reasoning_effort: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt and how it is answered; `grammar_field` is the argument that gave the sampler its grammar."""

    prompt: Prompt
    params: SamplingParams
    sampler: sampling_params.SamplingParams
    grammar_field: str = ""
    message_format: MessageFormat | None = None


def ask_prompts(prompts: Sequence[Prompt], params: Sequence[SamplingParams], model: TextModel) -> list[Asked]:
    """One of each. Raises InvalidRequest."""
    # Most often all prompts share one.
    known: dict[int, Asked] = {}
    for prompt, each in zip(prompts, params, strict=True):
        if id(each) not in known:
            form = each.form()
            sampler = _sampler(each, grammar_of(form, model.tokenizer, model.form_limits), model)
            known[id(each)] = Asked(prompt=prompt, params=each, sampler=sampler, grammar_field=constrained_field(form))
    return [replace(known[id(each)], prompt=prompt) for prompt, each in zip(prompts, params, strict=True)]


def ask_chat(
    messages: ChatMessages, params: SamplingParams, arguments: ChatArguments, model: TextModel, info: ModelInfo
) -> Asked:
    """Raises InvalidRequest or ContextLengthExceeded."""
    try:
        return _ask_chat(messages, params, arguments, model, info)
    except InvalidRequest as error:
        # An argument of our own stands for a field of OpenAI's.
        field, argument = "response_format.json_schema.schema", "json_schema"
        if not (error.param or "").startswith(field):
            raise
        raise InvalidRequest(error.message.replace(field, argument), param=argument) from None


def listed_chats(messages: ChatMessages | Sequence[ChatMessages]) -> list[ChatMessages]:
    """One conversation or several -> a list. Raises InvalidRequest if there is none."""
    require_type("messages", messages, Sequence[Any])
    given: list[Any] = list(messages)
    if not given:
        raise InvalidRequest("messages is empty", param="messages")
    if isinstance(given[0], Mapping):
        return [given]
    for index, chat in enumerate(given):
        require_type(f"messages[{index}]", chat, Sequence[Any])
    return given


def _ask_chat(
    messages: ChatMessages, params: SamplingParams, arguments: ChatArguments, model: TextModel, info: ModelInfo
) -> Asked:
    options = _options(messages, params, arguments)
    if (template := arguments.get("chat_template")) is not None:
        model = replace(model, chat_template=_own_template(template, model), tool_use_template=None)
    use = read_tool_use(options, model)
    text = render_messages(options.messages, options, model, shown_tools(use.offered))
    require_unicode("messages", text)
    token_ids = model.tokenizer.encode_prompt(text, add_special_tokens=False)
    form, field = form_with_parts(use, options, model, text), "tools"
    # A form without place for them begins with the answer's first token.
    thinks = bool(form) or not constrained_field(options)
    if not form or not use.offered:
        field = "json_schema" if arguments.get("json_schema") is not None else constrained_field(options)
    return Asked(
        prompt=Prompt(text=text.replace(MARK, ""), token_ids=checked(token_ids, info, "messages")),
        params=params,
        sampler=_sampler(params, form or grammar_of(options, model.tokenizer, model.form_limits), model),
        grammar_field=field,
        message_format=message_format(use, options, model, text, thinks=thinks),
    )


def _own_template(source: str, model: TextModel) -> ChatTemplate:
    require_type("chat_template", source, str)
    try:
        return ChatTemplate(source, model.tokenizer.special_tokens)
    except ModelLoadError as error:
        raise InvalidRequest(f"chat_template: {error.message}", param="chat_template") from None


def _options(messages: ChatMessages, params: SamplingParams, arguments: ChatArguments) -> ChatOptions:
    form = params.form()
    given = {name: value for name, value in arguments.items() if value is not None and name in ChatOptions.model_fields}
    schema = arguments.get("json_schema")
    for name in _HELD_AS_JSON & arguments.keys():
        require_json(name, arguments.get(name))
    if schema is not None:
        if form.structured_outputs is not None:
            raise InvalidRequest("json_schema and structured_outputs cannot be combined", param="json_schema")
        if isinstance(schema, str):
            require_unicode("json_schema", schema)
        parsed = parse_json(schema, "json_schema") if isinstance(schema, str) else schema
        given["response_format"] = {"type": "json_schema", "json_schema": {"schema": parsed}}
    with naming_fields():
        options = ChatOptions.model_validate({"messages": list(messages), **given})
    return options.model_copy(update={"structured_outputs": form.structured_outputs})


def _sampler(params: SamplingParams, grammar: str, model: TextModel) -> sampling_params.SamplingParams:
    # It may have been changed since it was made.
    require_type("bad_words", params.bad_words, Sequence[str] | None)
    return params.sampler(bad_words=bad_word_ids(params.bad_words or (), model.tokenizer), grammar=grammar)
