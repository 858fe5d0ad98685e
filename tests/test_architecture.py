"""The import rules and size limits of the code base, and that docs/architecture.md tells the truth."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pageloom", "gateway", "scheduler_svc", "worker_svc", "kernels/pageloom_kernels", "benchmarks")
SERVICES = ("gateway", "scheduler_svc", "worker_svc")
HEAVY = ("torch", "transformers", "triton")

# Package prefix -> top-level or dotted names that it must not import.
FORBIDDEN = {
    "pageloom": (*SERVICES, "pageloom_kernels", *HEAVY),
    "gateway": ("scheduler_svc", "worker_svc", "pageloom_kernels", *HEAVY),
    "scheduler_svc": ("gateway", "worker_svc", "pageloom_kernels", *HEAVY),
    "worker_svc": ("gateway", "scheduler_svc", "transformers"),
    "pageloom_kernels": (*SERVICES, "pageloom", "transformers"),
}
# The pure core: no clock, no randomness, no I/O, no other package.
CORE_ALLOWED = {
    "__future__", "array", "bisect", "collections", "collections.abc", "dataclasses", "enum", "hashlib", "heapq",
    "itertools", "math", "operator", "struct", "types", "typing",
    "numpy", "numpy.typing",
    "pageloom.errors", "pageloom.outputs", "pageloom.plan", "pageloom.requests",
    "pageloom.policies", "pageloom.sampling_params", "pageloom.timeline",
}  # fmt: skip
# Generated code is untyped at heart, so few files may touch it.
RPC_USERS = {
    "pageloom/wire/common.py", "pageloom/wire/engine.py", "pageloom/wire/record.py", "pageloom/wire/session.py",
    "pageloom/wire/worker.py",
    "pageloom/client.py", "pageloom/engine_session.py", "benchmarks/session.py",
    "scheduler_svc/engine_service.py", "scheduler_svc/session.py", "scheduler_svc/session_outbox.py",
    "scheduler_svc/worker_service.py",
    "scheduler_svc/worker_link.py", "scheduler_svc/server.py", "worker_svc/service.py", "worker_svc/attachment.py",
}  # fmt: skip
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def source_files() -> list[Path]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [path for path in files if "rpc/v1" not in path.as_posix()]


def module_name(path: Path) -> str:
    relative = path.relative_to(ROOT / "kernels") if "kernels" in path.parts else path.relative_to(ROOT)
    return ".".join(relative.with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_imports_point_downward():
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in source_files()
        for package, forbidden in FORBIDDEN.items()
        if is_within(module_name(path), package)
        for name in imports(path)
        if any(is_within(name, other) for other in forbidden)
    ]
    assert not broken, "\n".join(broken)


def test_the_core_is_pure():
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "scheduler_svc/core").glob("*.py")
        for name in imports(path)
        if name not in CORE_ALLOWED and not is_within(name, "scheduler_svc.core")
    ]
    assert not broken, "\n".join(broken)


def test_few_files_touch_generated_code():
    users = {
        path.relative_to(ROOT).as_posix()
        for path in source_files()
        if any(is_within(name, "pageloom.rpc") for name in imports(path))
    }
    assert users <= RPC_USERS, users - RPC_USERS


def test_files_and_functions_fit_a_screen():
    broken = []
    for path in source_files():
        text = path.read_text()
        if text.count("\n") > MAX_FILE_LINES:
            broken.append(f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    broken.append(f"{path.relative_to(ROOT)}: {node.name} has {num_lines} lines")
    assert not broken, "\n".join(broken)


def test_every_module_says_what_it_answers():
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, silent


def test_kernels_is_not_a_package():
    """A top-level package `kernels` would break transformers beside Hugging Face's own."""
    assert not (ROOT / "kernels/__init__.py").exists()
    importlib.import_module("pageloom_kernels")


@pytest.mark.parametrize(
    "module", ["pageloom", "pageloom.cli", "pageloom.llm.llm", "gateway.app", "scheduler_svc.__main__"]
)
def test_torch_stays_out(module: str):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "[]"


def documented_names() -> list[tuple[str, str]]:
    text = (ROOT / "docs/architecture.md").read_text()
    return re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)


def test_the_request_path_in_the_docs_exists():
    names = documented_names()
    assert len(names) >= 12
    for file, dotted in names:
        module = importlib.import_module(module_name(ROOT / file))
        target: object = module
        for part in dotted.split("."):
            target = getattr(target, part)
