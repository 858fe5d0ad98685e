"""Real clients, each in an environment of its own, against the real server: what they ask for works.

Clients that take long to install are marked `long_install`: `make test-clients` runs them, `make test` does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.environments import CannotInstallError, node_environment, python_environment
from tests.support.serving import Serving

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 60.0
LONG_INSTALL = pytest.mark.long_install
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonClient:
    """`environment` is that of requirements/; None is the one the tests run in."""

    environment: str | None
    script: str
    lends_packages: bool = False
    needs_tokenizer: bool = False

    def interpreter(self) -> Path:
        if self.environment is None:
            return Path(sys.executable)
        return python_environment(self.environment, lends_packages=self.lends_packages)


PYTHON_CLIENTS = [
    pytest.param(PythonClient(environment=None, script="openai_python.py"), id="openai-3"),
    pytest.param(PythonClient(environment="openai-2", script="openai_python.py"), id="openai-2"),
    pytest.param(PythonClient(environment="openai-1", script="openai_python.py"), id="openai-1"),
    pytest.param(PythonClient(environment="anthropic", script="anthropic_python.py"), id="anthropic"),
    pytest.param(PythonClient(environment="instructor", script="instructor_models.py"), id="instructor"),
    pytest.param(
        PythonClient(environment="langchain-openai", script="langchain_chat.py"), id="langchain", marks=LONG_INSTALL
    ),
    pytest.param(
        PythonClient(environment="pydantic-ai", script="pydantic_ai_agent.py"), id="pydantic-ai", marks=LONG_INSTALL
    ),
    pytest.param(PythonClient(environment="llm", script="llm_command.py"), id="llm", marks=LONG_INSTALL),
    pytest.param(
        PythonClient(environment="guidellm", script="guidellm_run.py", lends_packages=True, needs_tokenizer=True),
        id="guidellm",
        marks=LONG_INSTALL,
    ),
    pytest.param(
        PythonClient(environment="schemathesis", script="schemathesis_run.py"), id="schemathesis", marks=LONG_INSTALL
    ),
]


def run_client(command: list[str | Path], *, cwd: Path, timeout_s: float = TIMEOUT_S) -> str:
    """What the client printed. It has a home of its own, and no proxy or key of whoever runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    environment = {**kept, **QUIET, "HOME": str(cwd)}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout
        pytest.fail(f"not done after {timeout_s:.0f} s:\n{output}", pytrace=False)
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)
    return done.stdout


def cannot_install(reason: CannotInstallError) -> None:
    """Without a registry there is no client; where tests must not be left out, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))


@pytest.mark.timeout(900)  # the first time, with the installation
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_python(
    client: PythonClient, stack: Serving, model_name: str, tokenizer_folder: Path, tmp_path: Path
):
    try:
        interpreter = client.interpreter()
    except CannotInstallError as reason:
        return cannot_install(reason)
    arguments = [tokenizer_folder] if client.needs_tokenizer else []
    output = run_client([interpreter, SCRIPTS / client.script, stack.url, model_name, *arguments], cwd=tmp_path)
    assert "passed check_" in output


@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", ["openai.mjs", "ai_sdk.mjs"])
def test_node(script: str, stack: Serving, model_name: str, tmp_path: Path):
    try:
        packages = node_environment("npm")
    except CannotInstallError as reason:
        return cannot_install(reason)
    # Node looks for packages beside the script.
    (tmp_path / "node_modules").symlink_to(packages)
    shutil.copy(SCRIPTS / script, tmp_path)
    output = run_client(["node", "--test-reporter=spec", script, stack.url, model_name], cwd=tmp_path)
    assert "fail 0" in output
