"""The default model, held to a form: what comes out has it, however it is asked for."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.json_schemas import realistic_cases
from tests.support.schema_answers import ask_all, problem_of
from tests.support.serving import Serving

QUESTION = [{"role": "user", "content": "Tell me about Oslo."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "rank": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "size", "rank"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
# One of each kind; `make test-schemas` asks for all.
SAMPLE = (
    *("person", "invoice", "tagged union of references", "map of known size", "old tuple", "identifiers"),
    *("mixed enum", "escapes", "unicode", "pydantic model"),
)

# Who sends one has an answer within 5 s, and a machine under load a little later.
BOMB_LIMIT_S = 6.0


def test_answers_validate(stack: Serving):
    cases = [case for case in realistic_cases() if case.name in SAMPLE]
    assert len(cases) == len(SAMPLE)
    answers = asyncio.run(ask_all(stack.url, cases))
    outcomes = {answer.case.name: answer.refused or answer.problem or answer.finish_reason for answer in answers}
    assert outcomes == dict.fromkeys(SAMPLE, "stop")


def test_streamed_sampled_and_scored_answers_have_the_form_too(client: Any, model_name: str):
    form = {"model": model_name, "messages": QUESTION, "response_format": FORMAT}
    fields = {**form, "n": 3, "temperature": 1.3, "seed": 5, "max_tokens": 150}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        assert not problem_of(choice.message.content, SCHEMA), choice.message.content
        spelled = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert spelled.decode().removesuffix("<|im_end|>") == choice.message.content
    chunks = list(client.chat.completions.create(**fields, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": r"[A-Z]{3}-\d{2,4}"}, r"[A-Z]{3}-\d{2,4}"),
        ({"choice": ["small", "large", "largest"]}, "small|large|largest"),
        ({"grammar": 'root ::= word (" " word){2}\nword ::= [a-z]{1,6}'}, "[a-z]{1,6}( [a-z]{1,6}){2}"),
        ({"grammar": 'start: N (("+" | "-") N)~1..2\nN: /[0-9]{1,3}/'}, r"\d{1,3}([+-]\d{1,3}){1,2}"),
        ({"json_object": True, "disable_any_whitespace": True}, r"\{.*\}"),
    ],
)  # fmt: skip
def test_every_kind_of_form(client: Any, model_name: str, form: dict[str, Any], pattern: str):
    answer = client.chat.completions.create(
        model=model_name, messages=QUESTION, temperature=0, max_tokens=200, extra_body={"structured_outputs": form}
    )
    assert answer.choices[0].finish_reason == "stop" or "json_object" in form
    if answer.choices[0].finish_reason == "stop":
        assert re.fullmatch(pattern, answer.choices[0].message.content), answer.choices[0].message.content


def test_the_form_ends_the_answer_before_min_tokens_and_despite_ignore_eos(client: Any, model_name: str):
    answer = client.completions.create(
        model=model_name, prompt="Is it?", max_tokens=50,
        extra_body={"structured_outputs": {"choice": ["yes"]}, "min_tokens": 20, "ignore_eos": True},
    )  # fmt: skip
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("yes", "stop")


def test_what_is_cut_off_says_so(client: Any, model_name: str):
    answer = client.chat.completions.create(
        model=model_name, messages=QUESTION, response_format=FORMAT, max_tokens=5, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("{")


def test_bombs_are_refused_in_time_and_a_stream_goes_on_to_its_end(stack: Serving, model_name: str):
    """How fast it goes on meanwhile is what `benchmarks/grammar_bombs.py` measures."""

    def stream() -> list[str]:
        body = {"model": model_name, "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=60) as response:
            return [line for line in response.iter_lines() if line]

    item = {"type": "array", "minItems": 1000, "maxItems": 4000, "items": {"type": "string", "minLength": 9}}
    properties = {f"p{i}": {**item, "maxItems": 4000 + i} for i in range(1500)}
    bomb = {"model": model_name, "prompt": "x", "structured_outputs": {"json": {"properties": properties}}}

    def send_bomb(number: int) -> None:
        properties["p0"] = {**item, "maxItems": 10_000 + number}
        response = httpx.post(f"{stack.url}/v1/completions", json=bomb, timeout=BOMB_LIMIT_S)
        assert response.status_code == 400, response.text

    with ThreadPoolExecutor(1) as threads:
        streaming = threads.submit(stream)
        num_bombs = 0
        while num_bombs == 0 or not streaming.done():
            send_bomb(num_bombs)
            num_bombs += 1
        *chunks, last = streaming.result()
    assert last == "data: [DONE]"
    assert json.loads(chunks[-1].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_grammar_that_proves_too_much_is_refused_on_the_way(stack: Serving, model_name: str):
    """Whether the text matches depends on where its last hundred characters were an a: with every one that is drawn
    at random the number of cases grows, which nothing shows before."""
    body = {
        "model": model_name, "messages": QUESTION, "structured_outputs": {"regex": "(?s:.)*a(?s:.){100}b"},
        "temperature": 2.0, "seed": 1, "max_tokens": 800,
    }  # fmt: skip
    whole = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60)
    assert whole.status_code == 400, whole.text
    error = whole.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "structured_outputs.regex")
    assert "too many states" in error["message"]
    streamed = httpx.post(f"{stack.url}/v1/chat/completions", json=body | {"stream": True}, timeout=60)
    assert streamed.status_code == 200
    *_, last = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert last == {"error": error}
