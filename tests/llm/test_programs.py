"""Whole programs: the example, and the one that vLLM's documentation begins with."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# docs.vllm.ai, "Quickstart", offline batched inference.
QUICKSTART = """
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

llm = LLM(model="facebook/opt-125m")

outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
"""


def test_the_quickstart_of_vllm_with_another_import(address: str, capsys: pytest.CaptureFixture[str]):
    # With an engine that runs instead of a model that is not here.
    program = QUICKSTART.replace("from vllm import", "from pageloom import")
    exec(program.replace('model="facebook/opt-125m"', f"address={address!r}"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("Prompt: 'The capital of France is', Generated text: ")


def test_the_example():
    run = subprocess.run(
        [sys.executable, "examples/offline.py"], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 6
    assert "Paris" in lines[4]
    assert lines[5].startswith("As JSON: {'city': ")
    # Nothing but the progress of loading.
    assert all(line.startswith("Loading weights") for line in run.stderr.splitlines())
