"""`pageloom run-batch` with the real default model, and against a server that runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serving import Serving

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
TIMEOUT_S = 60.0


def requests(model_name: str, num: int, **body: object) -> list[dict[str, Any]]:
    body = {"model": model_name, **QUESTION, "max_tokens": 12, **body}
    return [
        {"custom_id": f"r{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for index in range(num)
    ]  # fmt: skip


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_batch(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pageloom", "run-batch", *args]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)


def test_a_file_is_answered_by_the_default_model(tmp_path: Path, model_name: str):
    (tmp_path / "in.jsonl").write_bytes(jsonl(requests(model_name, 4)))
    done = run_batch(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--max-num-seqs", "8")
    assert done.returncode == 0, done.stderr.decode()
    answers = read(tmp_path / "out.jsonl")
    assert sorted(answer["custom_id"] for answer in answers) == ["r0", "r1", "r2", "r3"]
    for answer in answers:
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert "Paris" in answer["response"]["body"]["choices"][0]["message"]["content"]
    assert "4 of 4 requests done, 0 failed" in done.stderr.decode()
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_failures_lie_beside_and_make_the_exit_code(stack: Serving, tmp_path: Path, model_name: str):
    lines = requests(model_name, 1)
    lines += [{**lines[0], "custom_id": "m", "body": {**lines[0]["body"], "model": "none"}}, lines[0]]
    (tmp_path / "in.jsonl").write_bytes(jsonl(lines))
    done = run_batch("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--url", f"{stack.url}/v1")
    assert done.returncode == 1, done.stderr.decode()
    (answer,) = read(tmp_path / "out.jsonl")
    assert answer["custom_id"] == "r0"
    errors = {error["id"]: error for error in read(tmp_path / "out.errors.jsonl")}
    assert errors["batch_req_2"]["response"]["status_code"] == 404
    assert errors["batch_req_3"]["error"]["code"] == "duplicate_custom_id"


def test_standard_input_and_output(stack: Serving, model_name: str):
    done = run_batch("-i", "-", "-o", "-", "--url", stack.url, stdin=jsonl(requests(model_name, 2)))
    assert done.returncode == 0, done.stderr.decode()
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 2


def test_ctrl_c_leaves_whole_lines(stack: Serving, tmp_path: Path, model_name: str):
    lines = requests(model_name, 200, max_tokens=40, ignore_eos=True)
    (tmp_path / "in.jsonl").write_bytes(jsonl(lines))
    output = tmp_path / "out.jsonl"
    args = ["-i", str(tmp_path / "in.jsonl"), "-o", str(output), "--url", stack.url, "--max-concurrency", "4"]
    process = subprocess.Popen([sys.executable, "-m", "pageloom", "run-batch", *args], stderr=subprocess.PIPE)
    deadline = time.monotonic() + TIMEOUT_S
    while not (output.exists() and output.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr.decode()
    assert 0 < len(read(output)) < 200
    assert "of 200 requests done, 0 failed" in stderr.decode()
    assert "Traceback" not in stderr.decode()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-i", "nowhere.jsonl", "-o", "-"), "cannot read nowhere.jsonl: no such file or directory"),
        (("-i", "-", "-o", "nowhere/out.jsonl"), "cannot write nowhere/out.jsonl: no such file or directory"),
        (("-i", "-", "-o", "-", "--url", "localhost:8000"), "--url must begin with http:// or https://"),
    ],
)
def test_what_cannot_start_says_so_in_a_line(args: tuple[str, ...], words: str):
    done = run_batch(*args)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"pageloom: {words}")


def test_a_batch_of_the_server(stack: Serving, model_name: str):
    direct = httpx.post(f"{stack.url}/v1/chat/completions", json=requests(model_name, 1)[0]["body"]).json()
    with httpx.Client(base_url=stack.url) as http:
        upload = http.post(
            "/v1/files",
            files={"file": ("in.jsonl", jsonl(requests(model_name, 8)))},
            data={"purpose": "batch"},
        ).json()
        body = {"input_file_id": upload["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = http.post("/v1/batches", json=body).json()
        deadline = time.monotonic() + TIMEOUT_S
        while batch["status"] != "completed" and time.monotonic() < deadline:
            time.sleep(0.1)
            batch = http.get(f"/v1/batches/{batch['id']}").json()
        assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        answers = http.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    for answer in map(json.loads, answers):
        assert answer["response"]["body"]["choices"] == direct["choices"]
