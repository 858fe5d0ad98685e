"""simonw/llm, by its command: a prompt, a stream, a schema, a tool, a conversation, a completion model."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, URL, run

folder = Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(folder)
# JSON is YAML.
(folder / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {"model_id": "chat", "supports_tools": True, "supports_schema": True},
            {"model_id": "text", "completion": True},
        ],
    )
    .replace('"model_id"', f'"model_name": "{MODEL}", "api_base": "{URL}/v1", "model_id"')
)  # fmt: skip
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "100")


def llm(*arguments: str) -> str:
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_prompt_streamed_and_not():
    question = ("-m", "chat", "-s", "Be brief.", "What is the capital of France?", *GREEDY)
    streamed = llm(*question)
    assert "Paris" in streamed
    assert llm(*question, "--no-stream") == streamed


def check_conversation_and_usage():
    assert llm("-c", "-m", "chat", "And of Norway?", *GREEDY)
    logged = json.loads(llm("logs", "--json", "-n", "0"))
    assert len({entry["conversation_id"] for entry in logged}) < len(logged)
    assert all(entry["input_tokens"] > 0 and entry["output_tokens"] > 0 for entry in logged)


def check_schema():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}
    schema["additionalProperties"] = False
    assert set(json.loads(llm("-m", "chat", "--schema", json.dumps(schema), "Describe a dog.", *GREEDY))) == {"name"}


def check_tools():
    tools = folder / "tools.py"
    tools.write_text('def multiply(a: int, b: int) -> int:\n    "The product of two numbers."\n    return a * b\n')
    assert llm("-m", "chat", "--functions", str(tools), "What is 6 times 7?", "--chain-limit", "3", *GREEDY)


def check_completion_model():
    assert llm("-m", "text", "The capital of France is", *GREEDY)


run(globals())
