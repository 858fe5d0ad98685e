"""`python -m tests.support.schema_answers`: asks the default model for JSON of every schema that is taken, and
validates every answer that came to its end."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import jsonschema
import openai

from tests.support.json_schemas import Case, realistic_cases, suite_cases, suite_files
from tests.support.serving import serving

MAX_TOKENS = 256
NUM_AT_ONCE = 16
MODEL = "SmolLM2-135M-Instruct"
# Where a schema sets no end, this small model finds none either: asked again, it is pushed towards what closes a value.
CLOSING = (
    (),
    ('"', "}", "]", '"}', "}}", "]}", '"]', "<|im_end|>"),
    ('"', "null", " null", "@", "<|im_end|>"),
)
CLOSING_BIAS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`refused` is the server's message, `problem` why the answer is not valid; both empty if all is well."""

    case: Case
    text: str = ""
    finish_reason: str = ""
    refused: str = ""
    problem: str = ""


async def ask_all(url: str, cases: Sequence[Case], *, max_tokens: int = MAX_TOKENS) -> list[Answer]:
    turns = asyncio.Semaphore(NUM_AT_ONCE)
    biases = [await _bias(url, texts) for texts in CLOSING]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:

        async def ask(case: Case) -> Answer:
            async with turns:
                for bias in biases:
                    answer = await _ask(client, case, max_tokens, bias)
                    if answer.finish_reason != "length":
                        break
                return answer

        return list(await asyncio.gather(*map(ask, cases)))


async def _bias(url: str, texts: Sequence[str]) -> dict[str, int]:
    async with httpx.AsyncClient(base_url=url) as http:
        answers = [await http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}) for text in texts]
    return {str(ids[0]): CLOSING_BIAS for answer in answers if len(ids := answer.json()["tokens"]) == 1}


async def _ask(client: openai.AsyncOpenAI, case: Case, max_tokens: int, logit_bias: dict[str, int]) -> Answer:
    question = f"Answer with a short JSON example of: {case.name}"
    try:
        completion = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            response_format={"type": "json_schema", "json_schema": {"name": "example", "schema": case.schema}},
            max_tokens=max_tokens,
            temperature=0,
            logit_bias=logit_bias,
        )
    except openai.BadRequestError as error:
        return Answer(case=case, refused=error.message)
    choice = completion.choices[0]
    text = choice.message.content or ""
    problem = problem_of(text, case.schema) if choice.finish_reason == "stop" else ""
    return Answer(case=case, text=text, finish_reason=choice.finish_reason, problem=problem)


def problem_of(text: str, schema: object) -> str:
    """Why the text is not JSON of the schema, empty if it is."""
    try:
        value = json.loads(text)
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return ""


def main() -> int:
    cases = [*realistic_cases(), *(case for file in suite_files() for case in suite_cases(file))]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as running:
        answers = asyncio.run(ask_all(running.url, cases))
    taken = [answer for answer in answers if not answer.refused]
    ended = [answer for answer in taken if answer.finish_reason == "stop"]
    wrong = [answer for answer in ended if answer.problem]
    for answer in wrong:
        print(f"not valid: {answer.case.name}: {answer.text!r}: {answer.problem}")
    for answer in taken:
        if answer.finish_reason != "stop":
            print(f"cut off ({answer.finish_reason}): {answer.case.name}: {answer.text[:60]!r}")
    print(
        f"{len(cases)} schemas: {len(cases) - len(taken)} refused, {len(taken)} answered, {len(ended)} to the end, "
        f"{len(ended) - len(wrong)} of these valid; {time.monotonic() - started_s:.0f} s"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
