"""schemathesis: what /openapi.json says is true. No answer of 500 and more, no status that is not documented, and
bodies of the documented form, however odd the request."""

import subprocess
import sys
from pathlib import Path

from checks import URL, run

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def schemathesis(*arguments: str) -> None:
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{URL}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--seed", "7", "--no-color", "--request-timeout", "20"),
        *arguments,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-20_000:]


def check_examples_and_boundaries():
    schemathesis("--phases", "examples,coverage")


def check_random_requests():
    schemathesis("--phases", "fuzzing", "--max-examples", "15")


run(globals())
