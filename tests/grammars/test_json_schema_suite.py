"""JSON-Schema-Test-Suite against our grammars: nothing invalid may come out, and what cannot be said is refused."""

import json
import re

import pytest

from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from tests.support.grammar_text import accepts, error_of
from tests.support.json_schemas import Case, realistic_cases, suite_cases, suite_files

# Schemas without a value, and what llguidance cannot do.
NOT_COMPILED = re.compile(r"Unsatisfiable schema|are not disjoint|too many digits")
# Valid, but not how our grammars write it: integers without a fraction, properties in the order of the schema, formats
# always checked.
NOT_WRITTEN = re.compile(
    r"float|\[[01]\.0\] is valid|zero fractional part|different property order|only an annotation by default"
    r"|allOf: allOf: allOf$|allOf with base schema: valid$"
)


def grammar_of(case: Case) -> str:
    """Empty if the schema is refused."""
    try:
        grammar = grammars.json_schema(case.schema, param="p")
    except InvalidRequest as error:
        refusal = error.message
        grammar = ""
    if not grammar:
        assert re.search(r"\(at /.*\)$|the schema false$", refusal), refusal
        return ""
    if problem := error_of(grammar):
        assert NOT_COMPILED.search(problem), (case.name, problem)
        return ""
    return grammar


@pytest.mark.parametrize("file", suite_files())
def test_whatever_a_grammar_allows_is_valid(file: str):
    for case in suite_cases(file):
        grammar = grammar_of(case)
        for test in case.tests if grammar else ():
            allowed = accepts(grammar, json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False))
            name = f"{case.name}: {test['description']}"
            assert allowed == test["valid"] or (test["valid"] and NOT_WRITTEN.search(name)), name


def test_most_schemas_are_taken():
    taken = [case for file in suite_files() for case in suite_cases(file) if grammar_of(case)]
    assert len(taken) >= 155
    assert len(taken) + len(realistic_cases()) >= 200


@pytest.mark.parametrize("case", realistic_cases(), ids=lambda case: case.name)
def test_what_applications_send_is_taken(case: Case):
    assert grammar_of(case)
