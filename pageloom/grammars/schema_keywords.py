"""What is a JSON schema, and which of its words do what here? The tables of `json_schema.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any] | bool

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
# In drafts before 2019-09 a $ref hides what stands beside it.
OLD_REFERENCE_DIALECTS = frozenset(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7))
DIALECTS = OLD_REFERENCE_DIALECTS | {
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
}
DEFINITIONS = frozenset({"$defs", "definitions"})
# They say something about values and restrict none.
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$anchor"),
        *("contentMediaType", "contentEncoding", "contentSchema", "discriminator"),
    }
)
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
# JSON Schema's own that are not among those. Any other name is an annotation.
UNENFORCED_FORMATS = frozenset(
    {
        *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer"),
        *("relative-json-pointer", "regex"),
    }
)
# Keyword -> what to do instead. An answer could not be held to any of them.
UNSUPPORTED: Mapping[str, str] = {
    "not": "",
    "if": "; anyOf can hold the cases",
    "then": "; anyOf can hold the cases",
    "else": "; anyOf can hold the cases",
    "dependentRequired": "; anyOf can hold the cases",
    "dependentSchemas": "; anyOf can hold the cases",
    "dependencies": "; anyOf can hold the cases",
    "propertyNames": "; patternProperties can restrict names",
    "unevaluatedProperties": "; use additionalProperties",
    "unevaluatedItems": "; use items",
    "uniqueItems": "",
    "contains": "",
    "minContains": "",
    "maxContains": "",
    "nullable": '; write {"type": ["string", "null"]}, for instance',
    "$dynamicRef": "; use $ref",
    "$dynamicAnchor": "; use $defs and $ref",
    "$recursiveRef": "; use $ref",
    "$recursiveAnchor": "; use $defs and $ref",
    "$vocabulary": "",
}
# Values with which such a keyword asks for nothing. Generators write them all the time.
NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "uniqueItems": (False,),
    "nullable": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "$recursiveAnchor": (False,),
}
