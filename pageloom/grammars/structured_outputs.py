"""Which form does a request want its answer in, and in which field does it say so?"""

from __future__ import annotations

from pageloom.errors import InvalidRequest
from pageloom.field_errors import naming_fields
from pageloom.form_limits import FormLimits
from pageloom.grammars import gbnf
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle, Tag
from pageloom.grammars.schemas import FormOptions, ResponseFormat, StructuralTag, StructuredOutputs
from pageloom.grammars.tag_format import format_grammar
from pageloom.tokenizer import Tokenizer

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def constrained_field(body: FormOptions) -> str:
    """Where the request says what form it wants; empty if it wants none. Raises InvalidRequest if it says so in
    several places or not clearly."""
    kinds = _kinds(body.structured_outputs)
    formatted = body.response_format is not None and body.response_format.type != "text"
    if body.structured_outputs is not None and len(kinds) != 1:
        given = f"not {' and '.join(kinds)}" if kinds else "but has none of them"
        raise InvalidRequest(
            f"structured_outputs needs exactly one of {', '.join(_KINDS)}, {given}", param="structured_outputs"
        )
    if formatted and kinds:
        raise InvalidRequest("response_format and structured_outputs cannot be combined", param="structured_outputs")
    return "response_format" if formatted else f"structured_outputs.{kinds[0]}" if kinds else ""


def grammar_of(body: FormOptions, tokenizer: Tokenizer, limits: FormLimits) -> str:
    """The text for `SamplingParams.grammar`, empty for free text. Raises InvalidRequest."""
    field = constrained_field(body)
    if not field:
        return ""
    if body.structured_outputs is not None:
        return _structured(body.structured_outputs, field, tokenizer, limits)
    assert body.response_format is not None
    return _formatted(body.response_format, tokenizer, JsonStyle(limits=limits))


def _kinds(wanted: StructuredOutputs | None) -> list[str]:
    if wanted is None:
        return []
    given = {kind: wanted.json_ if kind == "json" else getattr(wanted, kind) for kind in _KINDS}
    given["json_object"] = given["json_object"] or None
    return [kind for kind, value in given.items() if value is not None]


def _formatted(wanted: ResponseFormat, tokenizer: Tokenizer, style: JsonStyle) -> str:
    param = "response_format"
    if wanted.type == "json_object":
        return grammars.json_object(style=style)
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise InvalidRequest(f"{param}.json_schema is required with this type", param=f"{param}.json_schema")
        return grammars.json_schema(wanted.json_schema.schema_, param=f"{param}.json_schema.schema", style=style)
    return _structural_tag(wanted.model_dump(exclude={"json_schema"}), param, tokenizer, style)


def _structured(wanted: StructuredOutputs, field: str, tokenizer: Tokenizer, limits: FormLimits) -> str:
    style = grammars.json_style(
        compact=bool(wanted.disable_any_whitespace),
        whitespace_pattern=wanted.whitespace_pattern,
        closed_objects=bool(wanted.disable_additional_properties),
        param="structured_outputs.whitespace_pattern",
        limits=limits,
    )
    if wanted.json_ is not None:
        return grammars.json_schema(wanted.json_, param=field, style=style)
    if wanted.regex is not None:
        return grammars.regex(wanted.regex, param=field, limits=limits)
    if wanted.choice is not None:
        return grammars.choice(wanted.choice, param=field, limits=limits)
    if wanted.grammar is not None:
        return _grammar(wanted.grammar, field, limits)
    if wanted.structural_tag is not None:
        return _structural_tag(wanted.structural_tag, field, tokenizer, style)
    return grammars.json_object(style=style)


def _grammar(text: str, param: str, limits: FormLimits) -> str:
    return grammars.lark(gbnf.to_lark(text, param=param, limits=limits) if gbnf.is_gbnf(text) else text, param=param)


def _structural_tag(wanted: object, param: str, tokenizer: Tokenizer, style: JsonStyle) -> str:
    if isinstance(wanted, str):
        wanted = grammars.parse_json(wanted, param)
    special_tokens = tokenizer.special_ids_by_text
    if isinstance(wanted, dict) and wanted.get("format") is not None:
        return format_grammar(wanted["format"], param=f"{param}.format", special_tokens=special_tokens, style=style)
    with naming_fields(param):
        tag = StructuralTag.model_validate(wanted)
    return grammars.structural_tag(
        [Tag(begin=each.begin, schema=each.schema_, end=each.end) for each in tag.structures],
        tag.triggers,
        param=param,
        special_tokens=special_tokens,
        style=style,
    )
