"""The session benchmark runs, and both of its ways bring every token."""

import json
import subprocess
import sys


def test_both_ways_are_measured(tmp_path):
    path = tmp_path / "session.json"
    command = [sys.executable, "-m", "benchmarks.session", "--streams", "4", "--tokens", "30", "--step-ms", "10"]
    result = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    assert [figures["way"] for figures in document["ways"]] == ["Generate", "Session"]
    for figures in document["ways"]:
        assert figures["steps_per_s"] > 0
        assert figures["tokens_per_event"] >= 0.9
        assert figures["way"] in result.stdout
    assert document["load"]["num_streams"] == 4
    assert all(seconds > 0 for pair in document["outbox_s"].values() for seconds in pair)
