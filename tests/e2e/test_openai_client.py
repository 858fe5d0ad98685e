"""The official client against the real stack: the first thing a user does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.support.serving import Serving, metric

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_chat_answers(client: Any, model_name: str):
    answer = client.chat.completions.create(model=model_name, messages=QUESTION, temperature=0, max_tokens=40)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_is_the_same_text_in_pieces(client: Any, model_name: str):
    whole = client.chat.completions.create(model=model_name, messages=QUESTION, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=model_name, messages=QUESTION, temperature=0, max_tokens=40, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(bool(piece) for piece in pieces) > 4
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices].count("stop") == 1


def test_completion_with_logprobs_and_n(client: Any, model_name: str):
    answer = client.completions.create(
        model=model_name, prompt="Once upon a time", max_tokens=8, temperature=0.8, seed=7, n=3, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) > 1
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)


def test_a_seed_repeats(client: Any, model_name: str):
    def draw(seed: int) -> Any:
        answer = client.completions.create(
            model=model_name, prompt="The weather today is", max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    first = [draw(seed) for seed in range(3)]
    assert [draw(seed) for seed in range(3)] == first
    assert len(set(first)) == 3


def test_streams_share_steps(stack: Serving, client: Any, model_name: str):
    seqs_before, steps_before = (
        stack.scheduler_metric("pageloom_step_num_seqs_sum"),
        stack.scheduler_metric("pageloom_step_num_seqs_count"),
    )
    start = threading.Barrier(16)

    def read_stream(index: int) -> int:
        start.wait()
        stream = client.completions.create(
            model=model_name, prompt=f"Number {index}:", max_tokens=64, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        return sum(1 for _ in stream)

    with ThreadPoolExecutor(16) as pool:
        assert min(pool.map(read_stream, range(16))) > 16
    num_seqs = stack.scheduler_metric("pageloom_step_num_seqs_sum") - seqs_before
    num_steps = stack.scheduler_metric("pageloom_step_num_seqs_count") - steps_before
    assert num_seqs / num_steps > 8


def test_a_shared_prefix_is_computed_once(client: Any, model_name: str):
    prefix = [1000 + (7 * i) % 40000 for i in range(1000)]

    def cached(suffix: int) -> Any:
        answer = client.completions.create(model=model_name, prompt=[*prefix, suffix], max_tokens=1)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached(11) == 0
    assert cached(12) >= 900


def test_models_tokenize_and_operations(stack: Serving, client: Any, model_name: str):
    assert [model.id for model in client.models.list()] == [model_name]
    assert client.models.retrieve(model_name).id == model_name
    tokens = httpx.post(f"{stack.url}/tokenize", json={"model": model_name, "prompt": "Hello, wörld"}).json()["tokens"]
    text = httpx.post(f"{stack.url}/detokenize", json={"model": model_name, "tokens": tokens}).json()["prompt"]
    assert text == "Hello, wörld"
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(stack.url + path).status_code == 200
    assert metric(httpx.get(f"{stack.url}/metrics").text, "pageloom_generation_tokens_total") > 0
