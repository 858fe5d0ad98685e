"""What a chat template may do: Jinja's immutable sandbox, which stops neither loops nor doubling strings,
with a budget of time and text for each render."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from pageloom.special_text import MARK

MAX_RENDER_S = 2.0
MAX_RENDER_CHARS = 8 * 1024 * 1024


class SandboxedTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError if its source is not valid."""

    def __init__(self, source: str) -> None:
        environment = _Environment()
        self._template = environment.compile_bounded(source)
        self.global_names = frozenset(environment.globals)

    def render(self, variables: Mapping[str, object]) -> str:
        """Raises whatever the template raises, and jinja2.TemplateError when it exceeds its budget."""
        context = self._template.new_context(dict(variables))
        assert isinstance(context, _BoundedContext)
        pieces: list[str] = []
        for piece in self._template.root_render_func(context):
            context.budget.write(piece)
            pieces.append(piece)
        return "".join(pieces)


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
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return text.replace("\\ufdd0", MARK) if ensure_ascii else text
