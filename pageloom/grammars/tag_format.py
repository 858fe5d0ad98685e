"""xgrammar's tree of tags (`structural_tag.format`, as vLLM takes it) -> Lark: fixed texts, JSON, regular expressions,
free text, and tags around any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import NO_SPECIAL_TOKENS, JsonStyle
from pageloom.grammars.lark_text import lark_literals, lark_regex

_TEXT = "TEXT"


def format_grammar(
    wanted: object,
    *,
    param: str,
    special_tokens: Mapping[str, int] = NO_SPECIAL_TOKENS,
    style: JsonStyle = grammars.DEFAULT_STYLE,
) -> str:
    """The text for `SamplingParams.grammar`. Raises InvalidRequest, naming the part that is not accepted."""
    writer = _Writer(special_tokens, style)
    start = writer.format(wanted, param, "")
    return grammars.lark("\n".join([f"start: {start}", *writer.rules, f"{_TEXT}: /(?s:.*)/"]), param=param)


class _Writer:
    """Writes one grammar. Each method returns an expression that matches its part and after it the text `closing`,
    which is where free text before it ends."""

    def __init__(self, special_tokens: Mapping[str, int], style: JsonStyle) -> None:
        self.rules: list[str] = []
        self._special_tokens = special_tokens
        self._style = style
        self._num_formats = 0
        self._depth = 0

    def format(self, wanted: object, at: str, closing: str) -> str:
        self._num_formats += 1
        limits = self._style.limits
        if self._num_formats > limits.max_tag_parts or self._depth > limits.max_schema_depth:
            most, deepest = limits.max_tag_parts, limits.max_schema_depth
            raise InvalidRequest(f"{at}: a tag may have {most} parts, nested {deepest} deep", param=at)
        write = _WRITERS.get(str(wanted.get("type"))) if isinstance(wanted, dict) else None
        if write is None:
            raise InvalidRequest(f"{at} must be an object whose type is one of {', '.join(_WRITERS)}", param=at)
        self._depth += 1
        expression: str = write(self, wanted, at, closing)
        self._depth -= 1
        return expression

    def const_string(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        return self._literal(_text(wanted, "value", at) + closing)

    def json_schema(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        if wanted.get("style", "json") != "json":
            raise InvalidRequest(f"{at}.style is not supported other than 'json'", param=f"{at}.style")
        if "json_schema" not in wanted:
            raise InvalidRequest(f"{at}.json_schema is required", param=f"{at}.json_schema")
        schema = grammars.inline_json_schema(wanted["json_schema"], param=f"{at}.json_schema", style=self._style)
        return f"%json {schema} {self._literal(closing)}"

    def regex(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        return f"{lark_regex(_text(wanted, 'pattern', at))} {self._literal(closing)}"

    def any_text(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        if wanted.get("excludes"):
            raise InvalidRequest(f"{at}.excludes is not supported", param=f"{at}.excludes")
        return self._text_until(closing)

    def sequence(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        elements = _list(wanted, "elements", at)
        parts = []
        for index, element in enumerate(elements):
            last = index == len(elements) - 1
            if not last and isinstance(element, dict) and element.get("type") in ("any_text", "triggered_tags"):
                reason = "free text has no end unless it is last, or in a tag"
                raise InvalidRequest(f"{at}.elements[{index}]: {reason}", param=f"{at}.elements[{index}]")
            parts.append(self.format(element, f"{at}.elements[{index}]", closing if last else ""))
        return " ".join(parts)

    def either(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        elements = _list(wanted, "elements", at)
        return _either(self.format(each, f"{at}.elements[{index}]", closing) for index, each in enumerate(elements))

    def tag(self, wanted: Mapping[str, Any], at: str, closing: str, *, without: str = "") -> str:
        """`without` is how it begins where that has been written already."""
        begin = _text(wanted, "begin", at).removeprefix(without)
        ends = wanted.get("end")
        texts = ends if isinstance(ends, list) and ends else [_text(wanted, "end", at)]
        if not all(isinstance(end, str) for end in texts):
            raise InvalidRequest(f"{at}.end must be a string or a list of strings", param=f"{at}.end")
        content = _either(self.format(wanted.get("content"), f"{at}.content", end) for end in texts)
        return f"{self._literal(begin)} {content} {self._literal(closing)}"

    def triggered_tags(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        tags, used = _list(wanted, "tags", at), set()
        alternatives = []
        for trigger in _list(wanted, "triggers", at):
            if not isinstance(trigger, str) or not trigger:
                raise InvalidRequest(f"{at}.triggers must be strings, none of them empty", param=f"{at}.triggers")
            bodies = []
            for index, tag in enumerate(tags):
                if index not in used and _text(tag, "begin", f"{at}.tags[{index}]").startswith(trigger):
                    used.add(index)
                    bodies.append(self.tag(tag, f"{at}.tags[{index}]", "", without=trigger))
            if bodies:
                alternatives.append(f"{self._text_until(trigger)} {_either(bodies)}")
        if unused := set(range(len(tags))) - used:
            where = f"{at}.tags[{min(unused)}].begin"
            raise InvalidRequest(f"{where} starts with none of the triggers", param=where)
        called = _either(alternatives)
        if wanted.get("stop_after_first"):
            once = f"{called} {self._literal(closing)}"
            return once if wanted.get("at_least_one") else _either([once, self._text_until(closing)])
        return f"{called}{'+' if wanted.get('at_least_one') else '*'} {self._text_until(closing)}"

    def tags_with_separator(self, wanted: Mapping[str, Any], at: str, closing: str) -> str:
        tags = _list(wanted, "tags", at)
        tag = self._rule("tag", _either(self._as_tag(each, f"{at}.tags[{i}]") for i, each in enumerate(tags)))
        more = "" if wanted.get("stop_after_first") else f"({self._literal(_text(wanted, 'separator', at))} {tag})*"
        all_of_them = f"({tag} {more})"
        return f"{all_of_them}{'' if wanted.get('at_least_one') else '?'} {self._literal(closing)}"

    def _as_tag(self, wanted: object, at: str) -> str:
        return self.format({**wanted, "type": "tag"} if isinstance(wanted, dict) else wanted, at, "")

    def _text_until(self, closing: str) -> str:
        """Free text up to `closing` as it comes up first, with it; without one, to the end of the answer."""
        if not closing:
            return _TEXT
        if any(token in closing for token in self._special_tokens):
            return f"{_TEXT} {self._literal(closing)}"
        return self._rule("until", f"{_TEXT} {self._literal(closing)}", "[lazy]")

    def _rule(self, name: str, expression: str, attributes: str = "") -> str:
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {expression}")
        return name

    def _literal(self, text: str) -> str:
        return lark_literals(text, self._special_tokens)


def _either(expressions: Any) -> str:
    return f"({' | '.join(expressions)})"


def _text(wanted: object, name: str, at: str) -> str:
    value = wanted.get(name) if isinstance(wanted, dict) else None
    if not isinstance(value, str):
        raise InvalidRequest(f"{at}.{name} must be a string", param=f"{at}.{name}")
    return value


def _list(wanted: Mapping[str, Any], name: str, at: str) -> Sequence[Any]:
    value = wanted.get(name)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{at}.{name} must be a list of at least one", param=f"{at}.{name}")
    return value


_WRITERS: Mapping[str, Any] = {
    "const_string": _Writer.const_string,
    "json_schema": _Writer.json_schema,
    "regex": _Writer.regex,
    "any_text": _Writer.any_text,
    "sequence": _Writer.sequence,
    "or": _Writer.either,
    "tag": _Writer.tag,
    "triggered_tags": _Writer.triggered_tags,
    "tags_with_separator": _Writer.tags_with_separator,
}
