"""/openapi.json as the server is: without answers that it never gives, with the bounds that hold here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.requests.limits import BOUNDS, Bound
from gateway.runtime import Gateway
from pageloom.request_limits import RequestLimits
from pageloom.sampling_params import MAX_SEED

# A schema, or another part of the document.
JsonObject = dict[str, Any]

_DESCRIPTION = (
    "OpenAI's API with vLLM's extra fields. A field that is not listed is ignored; one that is known and not "
    'served is refused by name. Every error is `{"error": {"message", "type", "param", "code"}}`, but those under '
    "/v1/messages have Anthropic's shape."
)
# What `SamplingParams` and the translation of a request check, in words of JSON Schema.
RANGES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "temperature": {"minimum": 0},
        "top_p": {"minimum": 0, "maximum": 1},
        "top_k": {"minimum": -1},
        "min_p": {"minimum": 0, "maximum": 1},
        "presence_penalty": {"minimum": -2, "maximum": 2},
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "repetition_penalty": {"exclusiveMinimum": 0},
        "max_completion_tokens": {"minimum": 1},
        "min_tokens": {"minimum": 0},
        # OpenAI's are signed, vLLM's and ours are not.
        "seed": {"minimum": -(2**63), "maximum": MAX_SEED},
    }
)
_TOKEN_ID_FIELDS = ("prompt", "input", "stop_token_ids", "allowed_token_ids", "tokens")
# The type that each keyword speaks of.
_KEYWORD_TYPES = {"maxItems": "array", "maxLength": "string", "maxProperties": "object", "maximum": "integer"}


def describe_truly(app: FastAPI) -> None:
    """Replaces FastAPI's document by one that is made anew only when the model has become known."""
    documents: dict[int, JsonObject] = {}

    def openapi() -> JsonObject:
        gateway: Gateway = app.state.gateway
        info = gateway.engine.last_known_model
        num_token_ids = gateway.model.tokenizer.vocab_size if info is None else info.vocab_size
        if num_token_ids not in documents:
            documents.clear()
            documents[num_token_ids] = _document(app, gateway, num_token_ids)
        return documents[num_token_ids]

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI, gateway: Gateway, num_token_ids: int) -> JsonObject:
    document = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
    _drop_unsent_answers(document)
    _share_definitions(document)
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        _add_limits(properties, gateway.config.limits)
        _add_ranges(properties, num_token_ids)
        for member in _members(properties.get("model", {}), "string"):
            member["enum"] = list(gateway.model.names)
    return document


def _drop_unsent_answers(document: JsonObject) -> None:
    """FastAPI's own answer to a wrong request; here that is a 400."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _share_definitions(document: JsonObject) -> None:
    """Schemas of events bring their definitions, which for the document are at one place."""
    for path in document["paths"].values():
        for operation in path.values():
            for media in operation["responses"].get("200", {}).get("content", {}).values():
                for name, schema in media.get("itemSchema", {}).pop("$defs", {}).items():
                    document["components"]["schemas"].setdefault(name, schema)


def _add_limits(properties: Mapping[str, JsonObject], limits: RequestLimits) -> None:
    for bound in BOUNDS:
        for member in _members(properties.get(bound.field, {}), _KEYWORD_TYPES[bound.keyword]):
            if _holds_for(bound, member):
                member[bound.keyword] = getattr(limits, bound.limit)


def _holds_for(bound: Bound, member: JsonObject) -> bool:
    """One prompt's ids are bounded by the context. Inputs are prompts, or items of a conversation."""
    kind = member.get("items", {}).get("type")
    if bound.field == "input":
        return (
            kind in ("string", "array") if bound.limit == "max_inputs" else kind not in ("string", "array", "integer")
        )
    return bound.field != "prompt" or kind != "integer"


def _add_ranges(properties: Mapping[str, JsonObject], num_token_ids: int) -> None:
    for field, keywords in RANGES.items():
        for kind in ("number", "integer"):
            for member in _members(properties.get(field, {}), kind):
                if "maximum" in keywords:
                    # pydantic writes it as a float, which is not exact for large ones.
                    member.pop("exclusiveMaximum", None)
                member.update(keywords)
    for member in _members(properties.get("max_tokens", {}), "integer"):
        # None at all is for the echo of a text completion.
        member["minimum"] = 1 if "messages" in properties else 0
    for field in _TOKEN_ID_FIELDS:
        for member in _members(properties.get(field, {}), "integer"):
            member.update(minimum=0, maximum=num_token_ids - 1)
    for member in _members(properties.get("logit_bias", {}), "object"):
        member["propertyNames"] = {"pattern": "^[0-9]{1,10}$"}
        member["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}


def _members(schema: JsonObject, kind: str) -> Iterator[JsonObject]:
    """The parts of a field's schema that are of this type: of a union, and of the items of arrays."""
    if schema.get("type") == kind:
        yield schema
    for member in schema.get("anyOf", ()):
        yield from _members(member, kind)
    if kind in ("string", "integer") and "items" in schema:
        yield from _members(schema["items"], kind)
