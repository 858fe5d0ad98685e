"""JSON schemas to try: JSON-Schema-Test-Suite's (draft 2020-12, as published, MIT license beside it), and ones as
applications send them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SUITE = FOLDER.parent / "json_schema_test_suite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`tests` are [{"description", "data", "valid"}, ...]; ours have none."""

    name: str
    schema: Any
    tests: tuple[dict[str, Any], ...] = ()


def suite_files() -> list[str]:
    return sorted(path.stem for path in SUITE.glob("*.json"))


def suite_cases(file: str) -> list[Case]:
    cases = json.loads((SUITE / f"{file}.json").read_text(encoding="utf-8"))
    return [
        Case(name=f"{file}: {case['description']}", schema=case["schema"], tests=tuple(case["tests"])) for case in cases
    ]


def realistic_cases() -> list[Case]:
    schemas = json.loads((FOLDER / "realistic.json").read_text(encoding="utf-8"))
    return [Case(name=name, schema=schema) for name, schema in schemas.items()]
