"""The memory report, on processes that are named as `pageloom serve` and its services are."""

import json
import subprocess
import sys

import pytest

SERVICES = ("scheduler_svc", "worker_svc", "gateway")
HELD_BYTES = 64 * 1024 * 1024
# Each service is a module that holds memory and waits for its standard input to close.
SERVICE = f"import sys; held = bytearray(b'x') * {HELD_BYTES}; print(flush=True); sys.stdin.read()"
BUSY_SERVICE = "print(flush=True)\nwhile True: pass"
SERVE = """
import subprocess, sys
commands = [[sys.executable, "-m", name, "{}"] for name in sys.argv[2:]]
children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
for child in children:
    child.stdout.readline()
print(flush=True)
sys.stdin.read()
for child in children:
    child.kill()
    child.communicate()
"""


@pytest.fixture
def serve(tmp_path):
    """Starts `python …/pageloom serve` over the named services; each reports once it is up."""
    started = []

    def start(names, service=SERVICE):
        for name in names:
            (tmp_path / f"{name}.py").write_text(service)
        (tmp_path / "pageloom").write_text(SERVE)
        command = [sys.executable, str(tmp_path / "pageloom"), "serve", *names]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.communicate()


def memory(*args):
    command = [sys.executable, "-m", "benchmarks.memory", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_process_of_the_stack_is_measured(tmp_path, serve):
    process = serve(SERVICES)
    path = tmp_path / "memory.json"
    result = memory("--pid", str(process.pid), "--json", str(path))
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    figures = {figure["name"]: figure for figure in document["processes"]}
    assert list(figures) == ["serve", "scheduler", "worker", "gateway"]
    assert figures["serve"]["pid"] == process.pid
    for name in ("scheduler", "worker", "gateway"):
        assert HELD_BYTES < figures[name]["unique_bytes"] <= figures[name]["resident_bytes"] < 2 * HELD_BYTES
        assert figures[name]["resident_bytes"] <= figures[name]["peak_bytes"]
        assert name in result.stdout
    assert figures["serve"]["resident_bytes"] < HELD_BYTES
    assert document["machine"]["num_cores"] >= 1


def test_an_incomplete_or_busy_stack_is_refused(serve):
    result = memory("--pid", str(serve(SERVICES[:2]).pid))
    assert result.returncode == 1
    assert "gateway not found" in result.stderr
    result = memory("--pid", str(serve(SERVICES, BUSY_SERVICE).pid))
    assert result.returncode == 1
    assert "not at rest" in result.stderr


def test_a_process_id_that_does_not_exist_is_named():
    result = memory("--pid", str(2**22 + 1))
    assert result.returncode == 1
    assert "--pid" in result.stderr
