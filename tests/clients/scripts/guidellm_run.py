"""guidellm: a small benchmark of chats and one of completions; every request counts, as long as it was asked to be."""

import json
import subprocess
import sys
from pathlib import Path

from checks import ARGUMENTS, MODEL, URL, run

(TOKENIZER,) = ARGUMENTS
NUM_REQUESTS, OUTPUT_LEN = 20, 16


def benchmark(request_format: str) -> dict:
    report = Path(f"{request_format.replace('/', '-')}.json")
    command = [
        *(sys.executable, "-m", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={URL},model={MODEL},request_format={request_format}"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_LEN}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--output", f"kind=json,path={report}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(report.read_text())["benchmarks"]
    return found


def assert_good(found: dict) -> None:
    assert not found["requests"]["errored"]
    succeeded = found["requests"]["successful"]
    assert len(succeeded) == NUM_REQUESTS
    assert {request["output_metrics"]["text_tokens"] for request in succeeded} == {OUTPUT_LEN}
    assert found["metrics"]["time_to_first_token_ms"]["successful"]["median"] > 0
    assert found["metrics"]["inter_token_latency_ms"]["successful"]["median"] > 0


def check_chat_completions():
    assert_good(benchmark("/v1/chat/completions"))


def check_completions():
    assert_good(benchmark("/v1/completions"))


run(globals())
