"""Chat completions, through the official client and a real socket."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from pageloom.outputs import FinishReason
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import EOS_TOKEN_ID, MODEL, finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


async def test_whole_answer(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Bonjour le monde! 😀"), num_cached_tokens=7)
    answer = await ask(gateway)
    assert answer.choices[0].message.content == "Bonjour le monde! 😀"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == MODEL_NAME
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(gateway.engine.requests[0].prompt_token_ids)
    assert answer.usage.completion_tokens == len(gateway.encode("Bonjour le monde! 😀"))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 7


async def test_stream_keeps_every_wire_rule(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("Bonjour 😀 monde"))
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = events(response.text)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == "Bonjour 😀 monde"
    assert all("\ufffd" not in piece for piece in pieces)
    assert all("usage" not in chunk for chunk in chunks)


async def test_official_client_streams(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three"))
    stream = await gateway.openai.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two three"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_continuous_usage(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("one two three"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events((await gateway.chat(stream=True, stream_options=options)).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3


async def test_choices_are_told_apart(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("first"), gateway.encode("second one"), gateway.encode("third"))
    answer = await ask(gateway, n=3)
    assert [choice.message.content for choice in answer.choices] == ["first", "second one", "third"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    chunks = events((await gateway.chat(stream=True, n=3)).text)
    for index, text in enumerate(["first", "second one", "third"]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["delta"].get("role") for choice in own].count("assistant") == 1
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("include", "expected"), [(False, "The answer"), (True, "The answer is 42")])
async def test_stop_string_over_token_borders(gateway: GatewayServer, stream: bool, include: bool, expected: str):
    gateway.engine.script = says(gateway.encode("The answer is 42, surely"))
    stop = {"stop": ["never", " is 42"], "include_stop_str_in_output": include}
    response = await gateway.chat(stream=stream, **stop)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response.text)]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == expected
        last = choices[-1]
    else:
        last = response.json()["choices"][0]
        assert last["message"]["content"] == expected
        assert response.json()["usage"]["completion_tokens"] == len(gateway.encode("The answer is 42"))
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", " is 42")


async def test_stop_string_cancels_its_choice_only(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("a b STOP c d e"), gateway.encode("f g h i j k l m"), step_s=0.01)
    answer = await ask(gateway, n=2, stop="STOP")
    assert [choice.message.content for choice in answer.choices] == ["a b ", "f g h i j k l m"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    request = gateway.engine.requests[0]
    assert gateway.engine.was_cancelled(request, 0)
    assert not gateway.engine.was_cancelled(request, 1)


async def test_cached_tokens_are_known_after_a_stop_string(gateway: GatewayServer):
    engine, encode = gateway.engine, gateway.encode

    async def script(request):
        for position, token_id in enumerate(encode("one two STOP")):
            yield tokens(0, position, [token_id])
        await engine.until(lambda: engine.was_cancelled(request, 0))
        yield finished(0, 3, FinishReason.CANCELLED, num_cached_tokens=32)

    engine.script = script
    answer = await ask(gateway, stop=["STOP"])
    assert answer.choices[0].message.content == "one two "
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 32


async def test_stop_strings_wait_for_min_tokens(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("a b a b a b"))
    answer = await ask(gateway, stop=[" b"], extra_body={"min_tokens": 3})
    assert answer.choices[0].message.content == "a b a"


async def test_end_tokens_are_not_text(gateway: GatewayServer):
    word = gateway.encode(" halt")
    assert len(word) == 1
    gateway.engine.script = says([*gateway.encode("fine"), *word], reason=FinishReason.STOP, stop_token_id=word[0])
    body = (await gateway.chat(stop_token_ids=word)).json()
    assert body["choices"][0]["message"]["content"] == "fine"
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["stop_reason"]) == ("stop", word[0])
    assert body["usage"]["completion_tokens"] == 2
    gateway.engine.script = says(
        [*gateway.encode("fine"), EOS_TOKEN_ID], reason=FinishReason.STOP, stop_token_id=EOS_TOKEN_ID
    )
    body = (await gateway.chat(skip_special_tokens=False)).json()
    assert body["choices"][0]["message"]["content"] == "fine"
    assert body["choices"][0]["stop_reason"] is None


async def test_special_tokens_are_skipped_unless_asked_for(gateway: GatewayServer):
    gateway.engine.script = says([*gateway.encode("a"), EOS_TOKEN_ID, *gateway.encode("b")])
    assert (await gateway.chat(ignore_eos=True)).json()["choices"][0]["message"]["content"] == "ab"
    shown = await gateway.chat(ignore_eos=True, skip_special_tokens=False)
    assert shown.json()["choices"][0]["message"]["content"] == "a<|im_end|>b"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(gateway: GatewayServer, stream: bool):
    token_ids = gateway.encode("ok 😀")
    gateway.engine.script = says(token_ids)
    response = await gateway.chat(stream=stream, logprobs=True, top_logprobs=2)
    if stream:
        scored = [
            token
            for chunk in events(response.text)
            if chunk["choices"][0]["logprobs"]
            for token in chunk["choices"][0]["logprobs"]["content"]
        ]
    else:
        answer = ChatCompletion.model_validate(response.json())
        assert answer.choices[0].logprobs is not None
        scored = response.json()["choices"][0]["logprobs"]["content"]
    assert len(scored) == len(token_ids)
    assert bytes(byte for token in scored for byte in token["bytes"]).decode() == "ok 😀"
    assert (scored[0]["token"], scored[0]["logprob"]) == ("ok", -0.5)
    assert [top["logprob"] for top in scored[0]["top_logprobs"]] == [-0.5, -1.5]
    assert gateway.engine.requests[-1].sampling.logprobs == 2


async def test_unfinished_character_at_the_end(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("ok 😀")[:-1])
    assert (await ask(gateway)).choices[0].message.content == "ok \ufffd"


async def test_parameters_reach_the_engine(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    await gateway.chat(
        max_completion_tokens=9, temperature=0.25, top_p=0.5, top_k=7, min_p=0.125, presence_penalty=1,
        frequency_penalty=-1, repetition_penalty=1.5, logit_bias={"5": -100, "6": 2.5}, min_tokens=2,
        stop_token_ids=[9, 8], seed=-1, priority=-3, cache_salt="me", ignore_eos=True, user="u", n=2, best_of=2,
        store=True, metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=False,
        response_format={"type": "text"}, tool_choice="none",
        tools=[{"type": "function", "function": {"name": "f"}}], modalities=["text"], some_future_field={"x": [1]},
    )  # fmt: skip
    (request,) = gateway.engine.requests
    sampling = request.sampling
    assert (request.n, request.priority, request.cache_salt) == (2, -3, "me")
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (9, 2, True)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.25, 0.5, 7, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert sampling.logit_bias == {5: -100, 6: 2.5}
    assert (sampling.stop_token_ids, sampling.seed) == ((9, 8), 2**64 - 1)


async def test_null_means_the_default(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    response = await gateway.chat(
        max_tokens=None, temperature=None, stop=None, stream=None, n=None, logprobs=None, logit_bias=None, tools=None,
        tool_choice=None, response_format=None, stream_options=None, seed=None,
    )  # fmt: skip
    assert response.status_code == 200
    (request,) = gateway.engine.requests
    assert request.sampling.temperature == 1.0
    assert request.sampling.max_tokens == MODEL.max_model_len - len(request.prompt_token_ids), "the rest of the context"


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "user\na\nb<|"),
        ([{"role": "developer", "content": "Be."}, {"role": "user", "content": "x"}], "<|im_start|>system\nBe.<|"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": None}], "assistant\n<|im_end|>"),
        ([{"role": "tool", "content": "42", "tool_call_id": "c"}], "<|im_start|>tool\n42<|im_end|>"),
    ],
)
async def test_messages_become_the_prompt(gateway: GatewayServer, messages: list[dict[str, object]], prompt: str):
    gateway.engine.script = says(gateway.encode("x"))
    assert (await gateway.chat(messages=messages)).status_code == 200
    text = gateway.model.tokenizer.decode(gateway.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt in text
    assert text.endswith("<|im_start|>assistant\n")


async def test_template_options(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    messages = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    await gateway.chat(messages=messages, continue_final_message=True)
    await gateway.chat(messages=messages, add_generation_prompt=False)
    texts = [
        gateway.model.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        for request in gateway.engine.requests
    ]
    assert texts[0].endswith("assistant\nThe answer is")
    assert texts[1].endswith("The answer is<|im_end|>\n")


async def ask(gateway: GatewayServer, **fields: object) -> ChatCompletion:
    answer = await gateway.openai.chat.completions.create(model=MODEL_NAME, messages=HELLO, **fields)  # type: ignore
    assert isinstance(answer, ChatCompletion)
    return answer


def events(text: str) -> list[dict[str, Any]]:
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]
