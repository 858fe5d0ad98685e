"""The limits on a request's parts: one below, at, and one above each, by default and as an operator sets them."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.requests.limits import BOUNDS, check_limits
from gateway.served_model import ServedModel
from pageloom.errors import InvalidConfig
from pageloom.limit_fields import described_limits
from pageloom.request_limits import RequestLimits
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server
from tests.support.scripted_engine import says

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

# Limit, route, and the fields of a request that has so many.
SIZED: list[tuple[str, str, Callable[[int], dict[str, Any]]]] = [
    ("max_messages", CHAT, lambda n: {"messages": [USER] * n, "truncate_prompt_tokens": 5}),
    ("max_prompts", TEXT, lambda n: {"prompt": ["x"] * n}),
    ("max_prompts", TEXT, lambda n: {"prompt": [[5]] * n}),
    ("max_choices", TEXT, lambda n: {"n": n}),
    ("max_choices", CHAT, lambda n: {"n": n}),
    ("max_choices", TEXT, lambda n: {"best_of": n}),
    ("max_choices_in_all", TEXT, lambda n: {"prompt": ["x"] * n, "n": 1}),
    ("max_stop_strings", TEXT, lambda n: {"stop": ["a"] * n}),
    ("max_stop_chars", TEXT, lambda n: {"stop": "a" * n}),
    ("max_stop_chars", CHAT, lambda n: {"stop": ["b", "a" * n]}),
    ("max_stop_token_ids", TEXT, lambda n: {"stop_token_ids": [5] * n}),
    ("max_logit_bias", TEXT, lambda n: {"logit_bias": {str(i): 1 for i in range(n)}}),
    ("max_bad_words", TEXT, lambda n: {"bad_words": ["bad"] * n}),
    ("max_bad_word_chars", TEXT, lambda n: {"bad_words": ["a" * n]}),
    ("max_allowed_token_ids", TEXT, lambda n: {"allowed_token_ids": [5] * n}),
    ("max_logprobs", TEXT, lambda n: {"logprobs": n}),
    ("max_logprobs", CHAT, lambda n: {"logprobs": True, "top_logprobs": n}),
    ("max_metadata", CHAT, lambda n: {"metadata": {str(i): "x" for i in range(n)}}),
    ("max_template_variables", CHAT, lambda n: {"chat_template_kwargs": {f"v{i}": i for i in range(n)}}),
    # The request itself has others: an object with the names and values of model and prompt.
    ("max_json_containers", TEXT, lambda n: {"unknown": [[]] * (n - 2)}),
    ("max_json_strings", TEXT, lambda n: {"unknown": ['"[\\'] * (n - 6)}),
    ("max_json_depth", TEXT, lambda n: {"unknown": json.loads("[" * (n - 1) + "]" * (n - 1))}),
]
# What other parts of the request refuse or need more than a number is asked of the check alone.
CHECKED = [
    ("max_inputs", lambda n: {"input": ["x"] * n}),
    ("max_inputs", lambda n: {"input": [[5]] * n}),
    ("max_tools", lambda n: {"tools": [TOOL] * n}),
    ("max_prompt_logprobs", lambda n: {"prompt_logprobs": n}),
]
SMALL = RequestLimits(
    max_json_depth=12,
    max_json_containers=20,
    max_json_strings=40,
    max_messages=3,
    max_prompts=5,
    max_inputs=6,
    max_choices=4,
    max_choices_in_all=5,
    max_stop_strings=2,
    max_stop_chars=7,
    max_stop_token_ids=3,
    max_logit_bias=2,
    max_bad_words=2,
    max_bad_word_chars=9,
    max_allowed_token_ids=3,
    max_tools=2,
    max_metadata=2,
    max_template_variables=3,
    max_logprobs=2,
    max_prompt_logprobs=3,
)


def default_of(limit: str) -> int:
    return next(described.default for described in described_limits(RequestLimits) if described.name == limit)


def names(cases: list[Any]) -> list[str]:
    return [f"{limit}{path}" for limit, path, _ in cases]


@pytest.mark.parametrize(("limit", "path", "fields"), SIZED, ids=names(SIZED))
async def test_below_at_and_above(gateway: GatewayServer, limit: str, path: str, fields: Callable[[int], Any]):
    await expect_limit(gateway, limit, path, fields, default_of(limit))


async def test_an_operator_sets_them(served_model: ServedModel):
    assert set(vars(RequestLimits)["__slots__"]) == {case[0] for case in [*SIZED, *CHECKED]}
    async with gateway_server(served_model, limits=SMALL) as running:
        for limit, path, fields in [*SIZED, ("max_messages", "/tokenize", lambda n: {"messages": [USER] * n})]:
            await expect_limit(running, limit, path, fields, getattr(SMALL, limit))


@pytest.mark.parametrize(("limit", "fields"), CHECKED)
@pytest.mark.parametrize("limits", [RequestLimits(), SMALL])
async def test_checks(limit: str, fields: Callable[[int], Any], limits: RequestLimits):
    most = getattr(limits, limit)
    for size in (most - 1, most):
        check_limits(fields(size), limits)
    with pytest.raises(Exception, match=f"at most {most} (is|are) accepted"):
        check_limits(fields(most + 1), limits)


async def test_body_bytes(served_model: ServedModel):
    async with gateway_server(served_model, max_body_bytes=4096) as running:
        running.engine.script = says(running.encode("x"))
        for num_bytes, status in ((4095, 200), (4096, 200), (4097, 413)):
            body = json.dumps({"model": MODEL_NAME, "prompt": "x"}).ljust(num_bytes).encode()
            answer = await running.http.post(TEXT, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == status


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: f"{bound.field}-{bound.limit}")
async def test_values_of_other_types_are_left_to_the_request_models(bound: Any):
    values: list[object] = [None, True, 0.5, -5, "", [], {}, [None], [[]], {"a": None}]
    for value in values:
        check_limits({bound.field: value}, RequestLimits())


async def test_the_check_takes_no_time_for_what_it_refuses():
    huge = [USER] * 1_000_000
    started = time.thread_time()
    with pytest.raises(Exception, match="messages has 1000000 messages; at most 2048 are accepted"):
        check_limits({"messages": huge}, RequestLimits())
    assert time.thread_time() - started < 0.01


@pytest.mark.parametrize("limit", described_limits(RequestLimits), ids=lambda limit: limit.name)
async def test_settings_have_bounds_too(limit: Any):
    for value in (limit.low, limit.high):
        assert getattr(RequestLimits(**{limit.name: value}), limit.name) == value
    for value in (limit.low - 1, limit.high + 1):
        flag = "--" + limit.name.replace("_", "-")
        with pytest.raises(InvalidConfig, match=f"^{flag} must be between {limit.low} and {limit.high}, not {value}$"):
            RequestLimits(**{limit.name: value})


async def expect_limit(gateway: GatewayServer, limit: str, path: str, fields: Callable[[int], Any], most: int) -> None:
    gateway.engine.script = says(gateway.encode("x"))
    for size, status in ((most - 1, 200), (most, 200), (most + 1, 400)):
        gateway.engine.requests.clear()
        body = {"model": MODEL_NAME, "max_tokens": 1, **({"messages": [USER]} if path == CHAT else {}), **fields(size)}
        if path == TEXT:
            body.setdefault("prompt", "x")
        answer = await gateway.http.post(path, json=body)
        assert answer.status_code == status, (limit, size, answer.text)
    error = answer.json()["error"]
    assert str(most) in error["message"]
    if not limit.startswith("max_json"):
        assert error["code"] == "invalid_value"
        assert error["param"] in fields(2) or error["param"] == "n"
    assert gateway.engine.requests == []
