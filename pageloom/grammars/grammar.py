"""What an answer must look like -> the text for `SamplingParams.grammar`: an llguidance grammar, as the JSON of its
top level. Pure; whether a grammar can be compiled is found by `compiler.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from pageloom.errors import InvalidRequest
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.grammars.json_schema import normalize_schema
from pageloom.grammars.lark_text import lark_literals, lark_regex, lark_string
from pageloom.json_shape import excess_of
from pageloom.sampling_params import MAX_GRAMMAR_BYTES

MAX_SPACES = 8
NO_SPECIAL_TOKENS: Mapping[str, int] = MappingProxyType({})
_SPACE = r"(?: |\\[nrt]|[\n\r\t]|\\x(?:20|0[9aAdD]))"
_SPACE_PATTERN = re.compile(rf"(?:(?:{_SPACE}|\\s|\[{_SPACE}+\])(?:[?*+]|\{{\d{{1,2}}(?:,\d{{0,2}})?\}})?)*")
_UNBOUNDED = re.compile(r"(?P<closed>[*+])|\{(?P<low>\d+),\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonStyle:
    """How JSON is written: the regular expression of the white space that may stand between tokens, empty for
    none; and whether objects may have properties that their schema does not list when it does not say. `limits` bound
    its schema."""

    whitespace: str = rf"[ \n\r\t]{{1,{MAX_SPACES}}}"
    closed_objects: bool = False
    limits: FormLimits = DEFAULT_FORM_LIMITS


DEFAULT_STYLE = JsonStyle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """Of a structural tag: text from `begin`, which starts with a trigger, over JSON of `schema`, to `end`. The
    schema None stands for any JSON value."""

    begin: str
    schema: object
    end: str


def json_schema(schema: object, *, param: str, style: JsonStyle = DEFAULT_STYLE) -> str:
    """`schema` is parsed JSON, or its text. Raises InvalidRequest, with the JSON pointer of what is not accepted."""
    return _top_level({"json_schema": _styled(schema, param, style)}, param)


def inline_json_schema(schema: object, *, param: str, style: JsonStyle = DEFAULT_STYLE) -> str:
    """The same for a Lark grammar: what follows `%json`. Raises InvalidRequest."""
    return orjson.dumps(_styled(schema, param, style)).decode()


def json_object(*, style: JsonStyle = DEFAULT_STYLE) -> str:
    """Any JSON object."""
    return json_schema({"type": "object"}, param="json_object", style=style)


def regex(pattern: str, *, param: str = "regex", limits: FormLimits = DEFAULT_FORM_LIMITS) -> str:
    """The whole answer matches; ^ at the start and $ at the end say nothing more. Raises InvalidRequest."""
    if not pattern or len(pattern) > limits.max_regex_chars:
        raise InvalidRequest(f"{param} must have 1 to {limits.max_regex_chars} characters", param=param)
    return lark(f"start: TEXT\nTEXT: {lark_regex(pattern)}", param=param)


def choice(texts: Sequence[str], *, param: str = "choice", limits: FormLimits = DEFAULT_FORM_LIMITS) -> str:
    """The answer is one of the texts. Raises InvalidRequest."""
    if not texts or not all(texts):
        raise InvalidRequest(f"{param} must be a list of texts, none of them empty", param=param)
    require_at_most(param, len(texts), "texts", limits.max_choice_texts)
    return lark(f"start: {' | '.join(map(lark_string, dict.fromkeys(texts)))}", param=param)


def lark(text: str, *, param: str = "grammar") -> str:
    """A grammar in llguidance's dialect of Lark; its first rule is `start`. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    return _top_level({"lark_grammar": text}, param)


def structural_tag(
    tags: Sequence[Tag],
    triggers: Sequence[str],
    *,
    param: str = "structural_tag",
    special_tokens: Mapping[str, int] = NO_SPECIAL_TOKENS,
    style: JsonStyle = DEFAULT_STYLE,
) -> str:
    """Free text in which each trigger is the beginning of one of the tags that begin so. `special_tokens` are the
    model's, with their ids: in a text they are not their letters. Raises InvalidRequest."""
    require_at_most(f"{param}.structures", len(tags), "structures", style.limits.max_structural_tags)
    require_at_most(f"{param}.triggers", len(triggers), "triggers", style.limits.max_structural_tags)
    lines = ["start: (" + " | ".join(f"tags_{index}" for index in range(len(triggers))) + ")* TEXT", "TEXT: /(?s:.*)/"]
    used: set[int] = set()
    for index, trigger in enumerate(triggers):
        bodies = []
        for number, tag in enumerate(tags):
            if tag.begin.startswith(trigger) and number not in used:
                used.add(number)
                bodies.append(_tag_body(tag, trigger, f"{param}.structures[{number}]", special_tokens, style))
        if not bodies:
            raise InvalidRequest(f"{param}: no structure begins with the trigger {trigger!r}", param=param)
        if trigger in special_tokens:
            lines.append(f"tags_{index}: TEXT {lark_literals(trigger, special_tokens)} ({' | '.join(bodies)})")
        else:
            lines.append(f"trigger_{index}[lazy]: TEXT {lark_string(trigger)}")
            lines.append(f"tags_{index}: trigger_{index} ({' | '.join(bodies)})")
    if len(used) < len(tags):
        left_out = next(tag for number, tag in enumerate(tags) if number not in used)
        raise InvalidRequest(f"{param}: no trigger is how {left_out.begin!r} begins", param=param)
    return lark("\n".join(lines), param=param)


def json_style(
    *,
    compact: bool,
    whitespace_pattern: str | None,
    closed_objects: bool,
    param: str = "whitespace_pattern",
    limits: FormLimits = DEFAULT_FORM_LIMITS,
) -> JsonStyle:
    """Raises InvalidRequest if the pattern matches something else than white space."""
    if compact and whitespace_pattern is not None:
        raise InvalidRequest(f"{param} cannot be combined with disable_any_whitespace", param=param)
    whitespace = "" if compact else DEFAULT_STYLE.whitespace
    if whitespace_pattern is not None:
        if not _SPACE_PATTERN.fullmatch(whitespace_pattern):
            raise InvalidRequest(
                f"{param} must be a regular expression of white space, such as [ \\n]{{0,4}}, "
                f"not {whitespace_pattern[:100]!r}",
                param=param,
            )
        whitespace = _UNBOUNDED.sub(_bounded, whitespace_pattern).replace(r"\s", r"[ \n\r\t]")
    return JsonStyle(whitespace=whitespace, closed_objects=closed_objects, limits=limits)


def _bounded(quantifier: re.Match[str]) -> str:
    low = int(quantifier["low"] or (quantifier["closed"] == "+"))
    return f"{{{low},{max(low, MAX_SPACES)}}}"


def _tag_body(tag: Tag, trigger: str, param: str, special_tokens: Mapping[str, int], style: JsonStyle) -> str:
    schema = inline_json_schema({} if tag.schema is None else tag.schema, param=f"{param}.schema", style=style)
    begin, end = (lark_literals(text, special_tokens) for text in (tag.begin.removeprefix(trigger), tag.end))
    return f"{begin} %json {schema} {end}"


def _styled(schema: object, param: str, style: JsonStyle) -> dict[str, Any]:
    if isinstance(schema, str):
        schema = parse_json(schema, param)
    normal = normalize_schema(schema, param=param, closed_objects=style.closed_objects, limits=style.limits)
    if isinstance(normal, bool):
        if not normal:
            raise InvalidRequest(f"{param}: no value satisfies the schema false", param=param)
        normal = {}
    options: dict[str, Any] = {"whitespace_flexible": bool(style.whitespace)}
    if style.whitespace:
        options["whitespace_pattern"] = style.whitespace
    return {**normal, "x-guidance": options}


def parse_json(text: str, param: str) -> object:
    """Raises InvalidRequest, also if it is nested deeper than a body may be."""
    encoded = text.encode()
    if excess := excess_of(encoded):
        raise InvalidRequest(f"{param} is not accepted: {excess}", param=param)
    try:
        return orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from None


def require_at_most(field: str, size: int, unit: str, most: int) -> None:
    """Raises InvalidRequest."""
    if size > most:
        raise InvalidRequest(f"{field} has {size} {unit}; at most {most} are accepted", param=field)


def _top_level(grammar: dict[str, Any], param: str) -> str:
    try:
        text = orjson.dumps({"grammars": [grammar]})
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"{param} cannot be written as JSON: {error}", param=param) from None
    if len(text) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"{param} is larger than {MAX_GRAMMAR_BYTES} bytes", param=param)
    return text.decode()
