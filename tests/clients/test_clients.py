"""Real clients, each in an environment of its own, against the real server: what they ask for works.

Clients that take long to install are marked `long_install`: `make test-clients` runs them, `make test` does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.environments import CannotInstallError, node_environment, python_environment
from tests.support.serving import Serving, serving

SCRIPTS = Path(__file__).parent / "scripts"
# Where nothing else runs each takes about a minute at most.
TIMEOUT_S = 240.0
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
    "TQDM_DISABLE": "1",
    "LMEVAL_LOG_LEVEL": "ERROR",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonClient:
    """`environment` is that of requirements/; None is the one the tests run in. `server_options` ask for a server
    of its own. `arguments` name what the script gets beside the server's URL and the model's name."""

    environment: str | None
    script: str
    lends_packages: bool = False
    server_options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def interpreter(self) -> Path:
        if self.environment is None:
            return Path(sys.executable)
        return python_environment(self.environment, lends_packages=self.lends_packages)


LM_EVAL = PythonClient(
    environment="lm-eval",
    script="lm_eval_scores.py",
    lends_packages=True,
    server_options=("--dtype", "float32"),
    arguments=("tokenizer", "weights", "tasks"),
)
GUIDELLM = PythonClient(environment="guidellm", script="guidellm_run.py", lends_packages=True, arguments=("tokenizer",))
# Thousands of its requests do not say how long the answer may be.
SCHEMATHESIS = PythonClient(
    environment="schemathesis", script="schemathesis_run.py", server_options=("--max-model-len", "64")
)
QUICK_CLIENTS = {
    "openai-3": PythonClient(environment=None, script="openai_python.py"),
    "openai-2": PythonClient(environment="openai-2", script="openai_python.py"),
    "openai-1": PythonClient(environment="openai-1", script="openai_python.py"),
    "anthropic": PythonClient(environment="anthropic", script="anthropic_python.py"),
    "instructor": PythonClient(environment="instructor", script="instructor_models.py"),
}
OTHER_CLIENTS = {
    "langchain-openai": PythonClient(environment="langchain-openai", script="langchain_chat.py"),
    "pydantic-ai": PythonClient(environment="pydantic-ai", script="pydantic_ai_agent.py"),
    "llm": PythonClient(environment="llm", script="llm_command.py"),
    "lm-eval": LM_EVAL,
    "guidellm": GUIDELLM,
    "schemathesis": SCHEMATHESIS,
}
PYTHON_CLIENTS = [
    *(pytest.param(client, id=name) for name, client in QUICK_CLIENTS.items()),
    *(pytest.param(client, id=name, marks=pytest.mark.long_install) for name, client in OTHER_CLIENTS.items()),
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


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[tuple[str, ...]], Serving]]:
    """The server with these options; the one that all share if there are none."""
    with ExitStack() as own:

        def serve(options: tuple[str, ...]) -> Serving:
            if not options:
                shared: Serving = request.getfixturevalue("stack")
                return shared
            return own.enter_context(serving(tmp_path, *options))

        yield serve


@pytest.mark.timeout(900)  # the first time, with the installation
@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_python(
    client: PythonClient,
    server: Callable[[tuple[str, ...]], Serving],
    model_name: str,
    client_arguments: dict[str, Path],
    tmp_path: Path,
):
    try:
        interpreter = client.interpreter()
    except CannotInstallError as reason:
        return cannot_install(reason)
    url = server(client.server_options).url
    arguments = [client_arguments[name] for name in client.arguments]
    output = run_client([interpreter, SCRIPTS / client.script, url, model_name, *arguments], cwd=tmp_path)
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
