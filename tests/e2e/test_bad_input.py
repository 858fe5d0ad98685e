"""Wrong requests get OpenAI's error shape, before any stream starts, and disturb nobody."""

import json
import threading
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
MODEL = "SmolLM2-135M-Instruct"

# path, changes to a good body, status, the field that the error names
BAD_REQUESTS: list[tuple[str, dict[str, Any], int, str | None]] = [
    (CHAT, {"model": "gpt-17"}, 404, "model"),
    (TEXT, {"model": "gpt-17"}, 404, "model"),
    (CHAT, {"model": 5}, 400, "model"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "Hi"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "wizard", "content": "Hi"}]}, 400, "messages"),
    (CHAT, {"temperature": -1}, 400, "temperature"),
    (CHAT, {"temperature": "0.5"}, 400, "temperature"),
    (CHAT, {"top_p": 1.5}, 400, "top_p"),
    (CHAT, {"top_k": -2}, 400, "top_k"),
    (CHAT, {"min_p": 2}, 400, "min_p"),
    (CHAT, {"presence_penalty": 3}, 400, "presence_penalty"),
    (CHAT, {"frequency_penalty": -3}, 400, "frequency_penalty"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    (CHAT, {"n": 0}, 400, "n"),
    (CHAT, {"n": -1}, 400, "n"),
    (CHAT, {"n": 1_000_000_000}, 400, "n"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, {"max_tokens": -5}, 400, "max_tokens"),
    (CHAT, {"max_tokens": True}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 1_000_000}, 400, "max_tokens"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"top_logprobs": 99, "logprobs": True}, 400, "top_logprobs"),
    (CHAT, {"logit_bias": {"50000000": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    (CHAT, {"stop": ["x"] * 17}, 400, "stop"),
    (CHAT, {"stop_token_ids": [49152]}, 400, "stop_token_ids"),
    (CHAT, {"seed": "abc"}, 400, "seed"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [49152]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "prompt"),
    (TEXT, {"prompt": [1] * 9000}, 400, "prompt"),
    (TEXT, {"prompt": "word " * 9000}, 400, "prompt"),
    (TEXT, {"prompt": 17}, 400, "prompt"),
    (TEXT, {"logprobs": 21}, 400, "logprobs"),
    (TEXT, {"best_of": 1, "n": 2}, 400, "best_of"),
]
MALFORMED = [b"", b"{", b"[]", b'{"model": NaN}', b"\xff\xfe", b"[" * 100_000]


def send(http: httpx.Client, path: str, changes: dict[str, Any]) -> httpx.Response:
    good = {"model": MODEL, "max_tokens": 4, **({"messages": MESSAGES} if path == CHAT else {"prompt": "Hi"})}
    return http.post(path, json={**good, **changes})


def assert_error_shape(response: httpx.Response, status: int, param: str | None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert (error["param"] or "").startswith(param), error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "changes", "status", "param"), BAD_REQUESTS, ids=lambda value: str(value)[:40])
def test_bad_values(
    http: httpx.Client, path: str, changes: dict[str, Any], status: int, param: str | None, stream: bool
):
    assert_error_shape(send(http, path, {"stream": stream, **changes}), status, param)


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:16]))
def test_malformed_json(http: httpx.Client, body: bytes):
    response = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert_error_shape(response, 400, None)


def test_a_too_long_prompt_says_the_limit(http: httpx.Client):
    error = send(http, TEXT, {"prompt": [1] * 9000}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in error["message"]


def test_unknown_routes_and_methods(http: httpx.Client):
    assert_error_shape(http.get("/v1/nothing"), 404, None)
    assert_error_shape(http.get(CHAT), 405, None)
    assert_error_shape(http.post(CHAT + "/", json={}), 404, None)


def test_200_bad_requests_leave_running_streams_undisturbed(http: httpx.Client, client: Any):
    def read_story() -> str:
        stream = client.completions.create(
            model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=300, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    undisturbed = read_story()
    stories: list[str] = []
    all_sent = threading.Event()

    def read_stories() -> None:
        while not all_sent.is_set():
            stories.append(read_story())

    reader = threading.Thread(target=read_stories)
    reader.start()
    num_answered = 0
    while num_answered < 200:
        for path, changes, status, _param in BAD_REQUESTS:
            assert send(http, path, changes).status_code == status
            num_answered += 1
        for body in MALFORMED:
            response = http.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert response.status_code == 400
            num_answered += 1
    all_sent.set()
    reader.join()
    assert set(stories) == {undisturbed}


def test_an_error_body_is_json_even_without_a_body_type(http: httpx.Client):
    response = http.post(CHAT, content=json.dumps({"model": MODEL}), headers={"content-type": "text/plain"})
    assert_error_shape(response, 415, None)
