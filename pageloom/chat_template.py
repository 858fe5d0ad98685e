"""Messages -> prompt text, by the model's own Jinja template, with the semantics of transformers'
`apply_chat_template`.

A template is a program that came with a model file. It runs in Jinja's immutable sandbox, and each
render has a budget of time and text, because a sandbox stops neither loops nor doubling strings. The
caller keeps it off the event loop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from pageloom.errors import InvalidConfig, InvalidRequest, ModelLoadError
from pageloom.tokenizer import DEFAULT_TEMPLATE, Tokenizer

MAX_RENDER_S = 2.0
MAX_RENDER_CHARS = 8 * 1024 * 1024
JsonScalar = str | int | float | bool | None
Message = Mapping[str, object]

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_RESERVED_NAMES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
)


class ChatTemplate:
    """A compiled template. Raises ModelLoadError if its source is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._environment = _Environment()
        try:
            self._template = self._environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"the chat template is not valid: line {error.lineno}: {error.message}") from None

    def mentions(self, text: str) -> bool:
        """Whether the source contains a text, such as the name of a role it would have to know."""
        return text in self._source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, JsonScalar] | None = None,
    ) -> str:
        """The prompt. Raises InvalidRequest with the template's own words if it refuses the messages,
        or if it runs longer or writes more than a template may."""
        self._check_names(variables or {})
        if continue_final_message:
            messages = _with_continue_tag(messages)
        context = self._template.new_context(
            {
                **self._special_tokens,
                **(variables or {}),
                "messages": messages,
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        text = self._run(context)
        return _cut_at_continue_tag(text) if continue_final_message else text

    def _check_names(self, variables: Mapping[str, JsonScalar]) -> None:
        for name in variables:
            if name in _RESERVED_NAMES or name in self._special_tokens or name in self._environment.globals:
                raise InvalidRequest(
                    f"chat_template_kwargs cannot set {name!r}, which the server sets", param="chat_template_kwargs"
                )

    def _run(self, context: Context) -> str:
        assert isinstance(context, _BoundedContext)
        pieces: list[str] = []
        try:
            for piece in self._template.root_render_func(context):
                context.budget.write(piece)
                pieces.append(piece)
        except Exception as error:
            # Whatever a foreign program raises, the messages made it do so.
            reason = str(error) or type(error).__name__
            raise InvalidRequest(f"the chat template refused the messages: {reason}", param="messages") from error
        return "".join(pieces)


def load_chat_template(tokenizer: Tokenizer, override: str | None) -> ChatTemplate | None:
    """The model's template, or the one that the operator gave as a file or as its text; None if there is none."""
    source = tokenizer.chat_templates.get(DEFAULT_TEMPLATE)
    if override is not None:
        source = _read_override(override)
    return None if source is None else ChatTemplate(source, tokenizer.special_tokens)


def _read_override(value: str) -> str:
    if "{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"--chat-template takes a file or Jinja text; {value!r} is neither: {error}") from None


def _with_continue_tag(messages: Sequence[Message]) -> list[Message]:
    content = messages[-1].get("content")
    if not isinstance(content, str):
        raise InvalidRequest("continue_final_message needs a final message with text", param="continue_final_message")
    return [*messages[:-1], {**messages[-1], "content": content + _CONTINUE_TAG}]


def _cut_at_continue_tag(text: str) -> str:
    start = text.rfind(_CONTINUE_TAG.strip())
    if start < 0:
        raise InvalidRequest(
            "continue_final_message does not work with this chat template: it drops the final message's end",
            param="continue_final_message",
        )
    # A template that trims the message has trimmed the tag's space, and wants the text before it trimmed too.
    return text[:start] if text.startswith(_CONTINUE_TAG, start) else text[:start].rstrip()


class _Budget:
    """What one render may still use."""

    __slots__ = ("_chars_left", "_deadline_s")

    def __init__(self) -> None:
        self._deadline_s = time.monotonic() + MAX_RENDER_S
        self._chars_left = MAX_RENDER_CHARS

    def check_time(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise jinja2.TemplateRuntimeError(f"it runs for more than {MAX_RENDER_S:g} s")

    def write(self, piece: str) -> None:
        self.check_time()
        self._chars_left -= len(piece)
        if self._chars_left < 0:
            raise jinja2.TemplateRuntimeError(f"it writes more than {MAX_RENDER_CHARS} characters")


class _BoundedContext(Context):
    """Carries the budget to every loop and call of one render."""

    budget: _Budget

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = _Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        context = super().derived(locals)
        assert isinstance(context, _BoundedContext)
        context.budget = self.budget
        return context


@pass_context
def _bounded_iteration(context: _BoundedContext, iterable: Iterable[object]) -> Iterator[object]:
    for item in iterable:
        context.budget.check_time()
        yield item


def _bounded_text(text: str) -> str:
    if len(text) > MAX_RENDER_CHARS:
        raise jinja2.TemplateRuntimeError(f"it builds a text of more than {MAX_RENDER_CHARS} characters")
    return text


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 -- declared by Jinja as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Bounder(NodeTransformer):
    """Sends every loop's iterable and every joined text through its filter."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_bounded_iteration", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(node, "_bounded_text", [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The names and filters that chat templates expect, and the points where the budget is checked."""

    context_class = _BoundedContext
    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters.update(tojson=_to_json, _bounded_iteration=_bounded_iteration, _bounded_text=_bounded_text)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def compile_bounded(self, source: str) -> jinja2.Template:
        tree = _Bounder().visit(self.parse(source))
        tree.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
            _require_small(len(left) * right)
        elif operator == "*" and isinstance(right, str | list | tuple) and isinstance(left, int):
            _require_small(len(right) * left)
        elif operator == "**" and isinstance(right, int):
            _require_small(right * right)
        result = super().call_binop(context, operator, left, right)
        return _bounded_text(result) if isinstance(result, str) else result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Jinja's own signature: the odd names leave every keyword free for the template.
        assert isinstance(__context, _BoundedContext)
        __context.budget.check_time()
        for value in (*args, *kwargs.values()):
            # Such as the width of ljust.
            if isinstance(value, int):
                _require_small(value)
        return super().call(__context, __obj, *args, **kwargs)


def _require_small(size: int) -> None:
    if size > MAX_RENDER_CHARS:
        raise jinja2.TemplateRuntimeError(f"it asks for {size} of something, more than {MAX_RENDER_CHARS}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
