"""The request fields that ask for a form of the answer: OpenAI's response_format and vLLM's structured_outputs.
Types and sizes only; what they mean is decided in `structured_outputs.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pageloom.request_model import RequestModel

ChoiceTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]


class TagStructure(RequestModel):
    """A stretch of text from `begin` to `end` whose inside follows a JSON schema."""

    begin: Annotated[str, Field(min_length=1)]
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    end: str


class StructuralTag(RequestModel):
    """Free text, until one of `triggers` comes up: from there one of the structures that begin so."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: Annotated[list[TagStructure], Field(min_length=1, fail_fast=True)]
    triggers: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]


class JsonSchemaFormat(RequestModel):
    """`strict` changes nothing: the schema always holds."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """OpenAI's field. To the type structural_tag belong `structures` and `triggers`, or `format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(RequestModel):
    """vLLM's field: exactly one of the first six; the others say how JSON may be written."""

    json_: Annotated[str | dict[str, Any] | bool | None, Field(alias="json")] = None
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class FormOptions(RequestModel):
    """What form an answer is to have."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
