"""The comparison as its user starts it, of servers whose timing is known."""

import json
import subprocess
import sys

import psutil

SCRIPTED = f"{sys.executable} -m tests.benchmarks.scripted_server {{port}}"
QUICK = ("--workload", "prefix", "--workload", "prefill", "--requests-scale", "0.05", "--rounds", "2", "--warmup", "0")


def compare(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.compare", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_each_server_is_started_in_each_round_and_stopped(tmp_path):
    path = tmp_path / "figures.json"
    result = compare("--server", f"one={SCRIPTED}", "--server", f"two={SCRIPTED}", *QUICK, "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("of 2: one") == result.stderr.count("of 2: two") == 2
    document = json.loads(path.read_text())
    assert [server["label"] for server in document["servers"]] == ["one", "two"]
    for label in ("one", "two"):
        assert len(document["runs"][label]) == 2
        for run in document["runs"][label]:
            assert run["ready_s"] > 0
            assert 10e6 < run["resident_bytes"] < 1e9
            assert run["summaries"]["prefix"]["itl_s"]["p50"] > 0
    assert "one ÷ two" in result.stdout
    left = [
        process for process in psutil.process_iter(["cmdline"]) if "scripted_server" in str(process.info["cmdline"])
    ]
    assert not left


def test_a_server_that_dies_shows_its_last_words():
    dying = f"{sys.executable} -c \"import sys; sys.exit('no such model {{port}}')\""
    result = compare("--server", f"one={dying}", "--server", f"two={SCRIPTED}", *QUICK)
    assert result.returncode == 1
    assert "one: it ended with code 1 before it was ready" in result.stderr
    assert "no such model" in result.stderr


def test_bad_options_are_named():
    assert "with {port} in the command, not 'one=serve'" in compare("--server", "one=serve").stderr
    assert "for two servers or more" in compare("--server", f"one={SCRIPTED}").stderr
    twice = compare("--server", f"one={SCRIPTED}", "--server", f"one={SCRIPTED}")
    assert "each with a label of its own" in twice.stderr
