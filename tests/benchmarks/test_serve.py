"""The load generator as its user starts it, against a server whose timing and faults are known."""

import json
import subprocess
import sys

import pytest

from tests.benchmarks.scripted_server import GAP_S, TTFT_S, scripted_server

# A shared machine wakes late now and then; it never wakes early. Medians bear that.
LATE = 1.6
# One request of 16 output tokens.
SHORT_RUN = ("--workload", "prefix", "--requests-scale", "0.01", "--rounds", "1")


@pytest.fixture(scope="module")
def running_server():
    with scripted_server() as server:
        yield server


@pytest.fixture
def server(running_server):
    running_server.forget()
    return running_server


def bench(server, *args, model="steady"):
    command = [sys.executable, "-m", "benchmarks.serve", "--url", server.url, "--model", model, "--warmup", "0", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def figures(tmp_path, server, *args, model="steady"):
    """The JSON document of a run that must succeed."""
    path = tmp_path / "figures.json"
    result = bench(server, *args, "--json", str(path), model=model)
    assert result.returncode == 0, result.stderr
    return json.loads(path.read_text())


def test_known_delays_come_out_as_figures(tmp_path, server):
    document = figures(tmp_path, server, "--workload", "single", "--requests-scale", "0.25", "--rounds", "2")
    [single] = document["workloads"]
    assert single["num_requests"] == 2
    assert TTFT_S <= single["ttft_s"]["p50"] < TTFT_S * LATE
    assert GAP_S * 0.9 < single["itl_s"]["p50"] < GAP_S * LATE
    assert GAP_S * 0.9 < single["tpot_s"]["p50"] < GAP_S * LATE
    at_best = 128 / (TTFT_S + 127 * GAP_S)
    assert at_best / LATE < single["output_tokens_per_s"] <= at_best
    assert len(single["output_tokens_per_s_by_round"]) == 2
    assert single["prompt_tokens_per_s"] == pytest.approx(single["output_tokens_per_s"])
    assert single["tokens_per_chunk"] == 1
    assert single["cached_prompt_ratio"] == 0.25
    assert 0 < single["client_cpu_ratio"] < 0.5
    assert document["machine"].keys() >= {"cpu", "num_cores", "memory_bytes", "date"}
    assert document["server"]["model"] == "steady"


def test_a_chunk_of_several_tokens_counts_as_several(tmp_path, server):
    [prefix] = figures(tmp_path, server, *SHORT_RUN, model="pairs")["workloads"]
    assert prefix["tokens_per_chunk"] == 2
    assert 2 * GAP_S * 0.6 < prefix["itl_s"]["p50"] < 2 * GAP_S * LATE
    # The first chunk brings two tokens, and 14 follow.
    assert 14 / 15 * GAP_S * 0.6 < prefix["tpot_s"]["p50"] < GAP_S * LATE
    assert prefix["output_tokens_per_s"] > 16 / (TTFT_S + 14 * GAP_S) / LATE


def test_a_server_without_running_usage_is_timed_by_its_text(tmp_path, server):
    [prefix] = figures(tmp_path, server, *SHORT_RUN, model="text-only")["workloads"]
    assert TTFT_S <= prefix["ttft_s"]["p50"] < TTFT_S * LATE
    assert prefix["tokens_per_chunk"] == 1


def test_workloads_run_at_their_concurrency_with_their_prompts(tmp_path, server):
    document = figures(
        tmp_path, server, "--workload", "prefix", "--workload", "prefill", "--requests-scale", "0.5", "--rounds", "1"
    )
    assert [workload["name"] for workload in document["workloads"]] == ["prefix", "prefill"]
    assert server.most_running == 8
    assert document["workloads"][1]["itl_s"] is None
    prefix, prefill = server.prompts[:16], server.prompts[16:]
    assert {len(prompt) for prompt in prefix} == {1056}
    assert len({tuple(prompt[:1024]) for prompt in prefix}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prefix}) == 16
    assert [len(prompt) for prompt in prefill] == [2048, 2048]


def test_the_table_names_workload_and_machine_and_the_model_is_found(server):
    command = [sys.executable, "-m", "benchmarks.serve", "--url", f"{server.url}/v1", "--workload", "prefill"]
    result = subprocess.run([*command, "--rounds", "1"], capture_output=True, text=True, timeout=60, check=True)
    assert "steady" in result.stdout
    assert "prefill" in result.stdout
    assert "cores" in result.stdout


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("short", "wrong token count: the server generated 15 tokens, the request asked for 16"),
        ("error-event", "worker lost"),
        ("cut", "closed the connection before its answer was complete"),
        ("absent", "the server answered 404: "),
    ],
)
def test_a_server_that_does_other_work_gets_no_figures(tmp_path, server, model, message):
    path = tmp_path / "figures.json"
    result = bench(server, *SHORT_RUN, "--json", str(path), model=model)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--workload", "batch9"], "--workload must be one of single, batch8"),
        (["--url", "localhost:8000"], "--url must be http://HOST:PORT"),
        (["--url", "http://127.0.0.1:port"], "--url must be http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
    ],
)
def test_wrong_options_are_named(server, args, message):
    result = bench(server, *args)
    assert result.returncode == 1
    assert message in result.stderr
