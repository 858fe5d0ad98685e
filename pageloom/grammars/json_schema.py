"""May this JSON schema shape an answer? A walk before anything is compiled, which bounds the schema, names what is
not supported by its JSON pointer, and gives the schema back in one form: draft 2020-12, without annotations, with
every reference pointing into the root's $defs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from pageloom.errors import InvalidRequest
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.grammars.disjoint_schemas import MAX_PAIRED, first_overlap
from pageloom.grammars.endless_schemas import endless_definitions
from pageloom.grammars.schema_keywords import (
    ANNOTATIONS,
    DEFINITIONS,
    NO_OPS,
    OLD_REFERENCE_DIALECTS,
    UNSUPPORTED,
    Schema,
)
from pageloom.grammars.schema_values import VALUE_CHECKS, kind_of

# Alternatives of oneOf that are compared with each other, each with at most MAX_PAIRED of its own.
MAX_PAIRS = 10_000

# (value, pointer to it, depth) -> the value as it goes on.
Handler = Callable[["_Walk", Any, str, int], object]


def normalize_schema(
    schema: object, *, param: str, closed_objects: bool = False, limits: FormLimits = DEFAULT_FORM_LIMITS
) -> Schema:
    """The schema in the form that the grammar compiler gets. `closed_objects` forbids properties that are not
    listed wherever the schema does not say, unless other subschemas hold for the same object: they may list some.

    Raises InvalidRequest, with `param` as its field and the JSON pointer of what is wrong in the message.
    """
    walk = _Walk(schema, param, limits)
    root = walk.schema(schema, "", 1)
    definitions = walk.definitions()
    if closed_objects:
        walk.close_objects()
    walk.settle_one_of(definitions)
    walk.refuse_endless(definitions)
    if not definitions or isinstance(root, bool):
        return root
    return {**root, "$defs": definitions}


class _Walk:
    """One schema document on its way. `_owner` is the definition that is being walked, and `_in_place` what it
    refers to without consuming a character, which must not lead back to it."""

    def __init__(self, document: object, param: str, limits: FormLimits) -> None:
        self._document = document
        self._param = param
        self._limits = limits
        self._num_nodes = 0
        self._num_enum_values = 0
        self._num_enum_bytes = 0
        self._num_pairs = 0
        self._targets: list[str] = []
        self._names: dict[str, str] = {}
        self._owner = ""
        self._at_top = True
        self._in_place: dict[str, dict[str, str]] = {}
        # Whether something else holds for the object that is being walked, and definitions of which that is true.
        self._in_company = False
        self._company: set[str] = set()
        # Objects that list their properties, with the definition if it is what they are.
        self._listing: list[tuple[dict[str, Any], str]] = []
        self._with_one_of: list[tuple[dict[str, Any], str]] = []
        dialect = document.get("$schema") if isinstance(document, dict) else None
        self._old_references = isinstance(dialect, str) and dialect.rstrip("#") in OLD_REFERENCE_DIALECTS

    def refuse(self, pointer: str, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._param}: {reason} (at {pointer or '/'})", param=self._param)

    def definitions(self) -> dict[str, Schema]:
        """What has been referred to, by name; each is walked once, however often it is used."""
        done: dict[str, Schema] = {}
        # It grows meanwhile.
        for pointer in self._targets:
            name = self._names[pointer]
            self._owner, self._at_top = name, True
            done[name] = self.schema(self._resolve(pointer), pointer, 1)
        self._refuse_empty_cycles()
        return done

    def close_objects(self) -> None:
        """After all definitions, any of which may refer to any other where something else holds."""
        reached = list(self._company)
        # It grows meanwhile.
        for name in reached:
            new = self._in_place.get(name, {}).keys() - self._company
            self._company |= new
            reached += new
        for schema, definition in self._listing:
            if definition not in self._company:
                schema.setdefault("additionalProperties", False)

    def settle_one_of(self, definitions: Mapping[str, Schema]) -> None:
        """A grammar cannot count how many alternatives hold, so no two may hold together."""
        for schema, pointer in self._with_one_of:
            alternatives = schema.pop("oneOf")
            self._num_pairs += min(len(alternatives), MAX_PAIRED) ** 2 // 2
            if self._num_pairs > MAX_PAIRS:
                raise self.refuse(f"{pointer}/oneOf", "the schema has too many alternatives in oneOf; use anyOf")
            if overlap := first_overlap(alternatives, definitions):
                reason = "the alternatives {} and {} of oneOf may both hold, so far as can be told; use anyOf"
                raise self.refuse(f"{pointer}/oneOf", reason.format(*overlap))
            if "anyOf" in schema:
                schema.setdefault("allOf", []).append({"anyOf": alternatives})
            else:
                schema["anyOf"] = alternatives

    def refuse_endless(self, definitions: Mapping[str, Schema]) -> None:
        if endless := endless_definitions(definitions):
            pointer = next(pointer for pointer, name in self._names.items() if name == endless[0])
            raise self.refuse(pointer, "every value contains another one of the same schema, so none has an end")

    def schema(self, schema: object, pointer: str, depth: int) -> Schema:
        self._num_nodes += 1
        if self._num_nodes > (most := self._limits.max_subschemas):
            raise self.refuse(pointer, f"the schema has more than {most} subschemas")
        if depth > (deepest := self._limits.max_schema_depth):
            raise self.refuse(pointer, f"the schema is nested deeper than {deepest} levels")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self.refuse(pointer, f"a schema must be an object or a boolean, not {kind_of(schema)}")
        if self._old_references and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        normal: dict[str, Any] = {}
        keywords = self._modern(schema, pointer)
        outside, self._in_company = self._in_company, self._in_company or _has_company(keywords)
        for keyword, value in keywords.items():
            self._keyword(keyword, value, pointer, depth, normal)
        if "oneOf" in normal:
            self._with_one_of.append((normal, pointer))
        if "properties" in normal and not self._in_company:
            self._listing.append((normal, self._owner if self._at_top else ""))
        self._in_company = outside
        return normal

    def _keyword(self, keyword: str, value: object, pointer: str, depth: int, normal: dict[str, Any]) -> None:
        at = f"{pointer}/{_escaped(keyword)}"
        if keyword in _HANDLERS or keyword in VALUE_CHECKS:
            kept = self._kept(keyword, value, at, depth)
            if kept is not None or keyword == "const":
                normal[keyword] = kept
        elif keyword in UNSUPPORTED:
            if not any(type(value) is type(no_op) and value == no_op for no_op in NO_OPS.get(keyword, ())):
                raise self.refuse(at, f"the keyword {keyword!r} is not supported{UNSUPPORTED[keyword]}")
        elif keyword in DEFINITIONS and not isinstance(value, dict):
            raise self.refuse(at, f"{keyword} must be an object")
        # Everything else is an annotation or unknown, which JSON Schema has us ignore.

    def _kept(self, keyword: str, value: object, at: str, depth: int) -> object:
        if keyword in _HANDLERS:
            return _HANDLERS[keyword](self, value, at, depth)
        try:
            return VALUE_CHECKS[keyword](value)
        except ValueError as error:
            raise self.refuse(at, str(error)) from None

    def _modern(self, schema: dict[str, Any], pointer: str) -> dict[str, Any]:
        """The older spellings of tuples and of exclusive bounds in today's."""
        keywords = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if isinstance(keywords.get("items"), list):
            if "prefixItems" in keywords:
                raise self.refuse(f"{pointer}/items", "items must be a schema beside prefixItems")
            keywords["prefixItems"] = keywords.pop("items")
            if "additionalItems" in keywords:
                keywords["items"] = keywords["additionalItems"]
        keywords.pop("additionalItems", None)
        for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(flag := keywords.get(exclusive), bool):
                del keywords[exclusive]
                if flag and inclusive in keywords:
                    keywords[exclusive] = keywords.pop(inclusive)
        return keywords

    def identifier(self, value: object, pointer: str, _depth: int) -> None:
        if pointer != "/$id":
            raise self.refuse(pointer, "$id is only supported at the root")

    def reference(self, value: object, pointer: str, _depth: int) -> str:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise self.refuse(pointer, '$ref must be "#" or start with "#/": only this document can be referred to')
        target = unquote(value[1:])
        self._resolve(target, pointer)
        if target not in self._names:
            self._names[target] = f"d{len(self._targets)}"
            self._targets.append(target)
        name = self._names[target]
        if self._in_company:
            self._company.add(name)
        if self._at_top:
            self._in_place.setdefault(self._owner, {}).setdefault(name, pointer)
        return f"#/$defs/{name}"

    def _resolve(self, target: str, pointer: str = "") -> object:
        found: Any = self._document
        for part in target.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise self.refuse(pointer, f"$ref points to {target!r}, which does not exist")
        return found

    def _refuse_empty_cycles(self) -> None:
        """Definitions that refer to each other without an object or array between them describe nothing."""
        done: set[str] = set()
        for start in self._in_place:
            path: dict[str, None] = {}
            stack: list[tuple[str, str]] = [(start, "")]
            while stack:
                name, leaving = stack.pop()
                if leaving:
                    del path[name]
                    done.add(name)
                elif name not in done:
                    path[name] = None
                    stack.append((name, "leaving"))
                    for target, pointer in self._in_place.get(name, {}).items():
                        if target in path:
                            raise self.refuse(pointer, "$ref leads back to itself without consuming any text")
                        stack.append((target, ""))

    def constant(self, value: object, pointer: str, _depth: int) -> object:
        self._count_values([value], pointer)
        return value

    def enum(self, value: object, pointer: str, _depth: int) -> object:
        if not isinstance(value, list) or not value:
            raise self.refuse(pointer, "enum must be a list of at least one value")
        self._count_values(value, pointer)
        return value

    def _count_values(self, values: list[Any], pointer: str) -> None:
        self._num_enum_values += len(values)
        if self._num_enum_values > (most := self._limits.max_enum_values):
            raise self.refuse(pointer, f"the schema has more than {most} values in enum and const")
        try:
            self._num_enum_bytes += len(orjson.dumps(values))
        except orjson.JSONEncodeError as error:
            # It is nested too deep, or a text of it is not Unicode.
            raise self.refuse(pointer, f"a value cannot be written as JSON: {error}") from None
        if self._num_enum_bytes > (most := self._limits.max_enum_bytes):
            raise self.refuse(pointer, f"the values in enum and const take more than {most} bytes")

    def pattern(self, value: object, pointer: str, _depth: int) -> str:
        if not isinstance(value, str):
            raise self.refuse(pointer, "it must be a regular expression as a string")
        if len(value) > (longest := self._limits.max_pattern_chars):
            raise self.refuse(pointer, f"the pattern is longer than {longest} characters")
        return value

    def subschema(self, value: object, pointer: str, depth: int) -> Schema:
        place = self._at_top, self._in_company
        self._at_top = self._in_company = False
        normal = self.schema(value, pointer, depth + 1)
        self._at_top, self._in_company = place
        return normal

    def named_subschemas(self, value: object, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self.refuse(pointer, "it must be an object of schemas")
        return {name: self.subschema(schema, f"{pointer}/{_escaped(name)}", depth) for name, schema in value.items()}

    def listed_subschemas(self, value: object, pointer: str, depth: int) -> list[Schema]:
        place = self._at_top, self._in_company
        self._at_top = self._in_company = False
        normal = self.alternatives(value, pointer, depth)
        self._at_top, self._in_company = place
        return normal

    def alternatives(self, value: object, pointer: str, depth: int) -> list[Schema]:
        """allOf and its like: they hold for the same place, so what they refer to is in place, too."""
        if not isinstance(value, list) or not value:
            raise self.refuse(pointer, "it must be a list of at least one schema")
        return [self.schema(schema, f"{pointer}/{index}", depth + 1) for index, schema in enumerate(value)]


def _escaped(name: str) -> str:
    """RFC 6901."""
    return name.replace("~", "~0").replace("/", "~1")


def _has_company(keywords: Mapping[str, Any]) -> bool:
    """Whether several subschemas hold for the same value, of which each may list properties."""
    members = keywords.get("allOf")
    num_listing = len(members) if isinstance(members, list) else 0
    num_listing += sum(name in keywords for name in ("anyOf", "oneOf", "$ref"))
    return num_listing + ("properties" in keywords or "patternProperties" in keywords) > 1


_HANDLERS: Final[Mapping[str, Handler]] = {
    "$id": _Walk.identifier,
    "$ref": _Walk.reference,
    "enum": _Walk.enum,
    "const": _Walk.constant,
    "allOf": _Walk.alternatives,
    "anyOf": _Walk.alternatives,
    "oneOf": _Walk.alternatives,
    "properties": _Walk.named_subschemas,
    "patternProperties": _Walk.named_subschemas,
    "additionalProperties": _Walk.subschema,
    "prefixItems": _Walk.listed_subschemas,
    "items": _Walk.subschema,
    "pattern": _Walk.pattern,
}
