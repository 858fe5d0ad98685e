"""Answers to prompts and chats from Python, without a server: `python examples/offline.py [MODEL]`."""

import json
import sys

from pageloom import LLM, SamplingParams

PROMPTS = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def main(model: str) -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    with LLM(model=model) as llm:
        for output in llm.generate(PROMPTS, sampling_params):
            print(f"Prompt: {output.prompt!r}, text: {output.outputs[0].text!r}")

        question = [{"role": "user", "content": "What is the capital of France?"}]
        (answer,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=64))
        print(f"Chat: {answer.outputs[0].text!r}")

        (form,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=64), json_schema=CITY)
        print(f"As JSON: {json.loads(form.outputs[0].text)}")


if __name__ == "__main__":
    # Without a model, the embedded SmolLM2-135M-Instruct.
    main(sys.argv[1] if len(sys.argv) > 1 else "")
