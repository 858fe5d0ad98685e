"""How large may the form be that a request wants its answer in? Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.limit_fields import limit, require_accepted
from pageloom.sampling_params import MAX_GRAMMAR_BYTES

# The walk over a schema recurses.
_DEEPEST_SCHEMA = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class FormLimits:
    """What is taken at most before a grammar is made of it. Raises InvalidConfig, naming the flag."""

    max_schema_depth: int = limit(
        32, "Deepest nesting of a JSON schema, or of a tree of structural tags.", high=_DEEPEST_SCHEMA
    )
    max_subschemas: int = limit(10_000, "Most subschemas of a JSON schema.", high=100_000)
    max_enum_values: int = limit(1000, "Most values in all `enum` and `const` of a schema.", high=100_000)
    max_enum_bytes: int = limit(64 * 1024, "Most bytes that these take as JSON.", high=MAX_GRAMMAR_BYTES)
    max_pattern_chars: int = limit(4096, "Longest `pattern` of a schema, in characters.", high=MAX_GRAMMAR_BYTES)
    max_regex_chars: int = limit(
        16 * 1024, "Longest `structured_outputs.regex`, in characters.", high=MAX_GRAMMAR_BYTES
    )
    max_choice_texts: int = limit(1000, "Most texts in `structured_outputs.choice`.", high=100_000)
    max_grammar_rules: int = limit(5000, "Most rules of a grammar in llama.cpp's notation.", high=100_000)
    max_structural_tags: int = limit(128, "Most structures, and most triggers, of a structural tag.", high=100_000)
    max_tag_parts: int = limit(1000, "Most parts of a tree of structural tags.", high=100_000)
    # A client has its refusal within 5 s.
    max_grammar_compile_s: int = limit(4, "Most seconds that compiling a grammar may take.", high=600)
    # Above what the process has once the vocabulary is loaded.
    max_grammar_compile_bytes: int = limit(
        1 << 30, "Most memory that it may take, in bytes.", low=32 << 20, high=1 << 40
    )

    def __post_init__(self) -> None:
        require_accepted(self)


DEFAULT_FORM_LIMITS = FormLimits()
