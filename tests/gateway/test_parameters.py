"""vLLM's extra parameters that the gateway serves itself: truncation, token ids, words and tokens that may come."""

from typing import Any

import pytest

from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest
from gateway.requests.terms import Terms
from gateway.requests.translate import translate_chat, translate_completion
from pageloom.sampling_params import SamplingParams
from tests.gateway.test_chat import events
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import MODEL, finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "What is it?"}


def sampling(gateway: GatewayServer, **fields: object) -> SamplingParams:
    body = CompletionRequest.model_validate({"model": MODEL_NAME, "prompt": "x", **fields})
    return translate_completion(body, Terms(), gateway.model, MODEL).prompts[0].sampling


def kept(gateway: GatewayServer, **fields: object) -> tuple[int, ...]:
    body = CompletionRequest.model_validate({"model": MODEL_NAME, **fields})
    return translate_completion(body, Terms(), gateway.model, MODEL).prompts[0].token_ids


async def test_bad_words_with_and_without_a_space_before(gateway: GatewayServer):
    def one(text: str) -> int:
        (token_id,) = gateway.encode(text)
        return token_id

    assert sampling(gateway, bad_words=["world"]).bad_words == ((one("world"),), (one(" world"),))
    assert sampling(gateway, bad_words=[" world", "world"]).bad_words == ((one("world"),), (one(" world"),))
    several = sampling(gateway, bad_words=["New York"]).bad_words
    assert several == (tuple(gateway.encode("New York")), tuple(gateway.encode(" New York")))


async def test_allowed_token_ids(gateway: GatewayServer):
    assert sampling(gateway, allowed_token_ids=[5, 7]).allowed_token_ids == (5, 7)
    assert sampling(gateway, allowed_token_ids=None).allowed_token_ids == ()


async def test_both_reach_the_engine(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    await gateway.chat(bad_words=["x"], allowed_token_ids=[5])
    (request,) = gateway.engine.requests
    assert request.sampling.bad_words[0] == tuple(gateway.encode("x"))
    assert request.sampling.allowed_token_ids == (5,)


async def test_a_long_prompt_is_cut(gateway: GatewayServer):
    ids = list(range(100, 120))
    assert kept(gateway, prompt=ids, truncate_prompt_tokens=3) == (117, 118, 119)
    assert kept(gateway, prompt=ids, truncate_prompt_tokens=3, truncation_side="right") == (100, 101, 102)
    assert kept(gateway, prompt=ids, truncate_prompt_tokens=20) == tuple(ids)
    assert kept(gateway, prompt=ids, truncate_prompt_tokens=500) == tuple(ids)
    long = "word " * 200_000
    assert len(kept(gateway, prompt=long, truncate_prompt_tokens=-1, max_tokens=12)) == MODEL.max_model_len - 12
    assert len(kept(gateway, prompt=long, truncate_prompt_tokens=-1)) == MODEL.max_model_len - 16
    messages = [{"role": "user", "content": long}]
    body = ChatCompletionRequest.model_validate(
        {"model": MODEL_NAME, "messages": messages, "truncate_prompt_tokens": -1}
    )
    assert len(translate_chat(body, Terms(), gateway.model, MODEL).prompts[0].token_ids) == MODEL.max_model_len - 1


async def test_what_is_kept_must_fit_too(gateway: GatewayServer):
    answer = await gateway.complete(prompt=[5] * 1000, truncate_prompt_tokens=MODEL.max_model_len)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_echo_of_a_cut_prompt_is_what_was_kept(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("!"))
    answer = await gateway.complete(prompt="one two three", truncate_prompt_tokens=1, echo=True)
    assert answer.json()["choices"][0]["text"] == " three!"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_repeats_the_message_it_goes_on_from(gateway: GatewayServer, stream: bool):
    gateway.engine.script = says(gateway.encode(" is Paris"), gateway.encode(" was Lutetia"))
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "The capital"}]}]
    answer = await gateway.chat(messages=messages, continue_final_message=True, echo=True, n=2, stream=stream)
    assert texts(answer, stream) == ["The capital is Paris", "The capital was Lutetia"]
    answer = await gateway.chat(messages=[USER], echo=True, stream=stream)
    assert texts(answer, stream) == [" is Paris"], "the last message is not the assistant's"


def texts(answer: Any, stream: bool) -> list[str]:
    if not stream:
        return [choice["message"]["content"] for choice in answer.json()["choices"]]
    found: dict[int, str] = {}
    for body in events(answer.text):
        for choice in body["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["delta"].get("content", "")
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_of_a_chat(gateway: GatewayServer, stream: bool):
    emoji = gateway.encode("a😀")
    gateway.engine.script = says([*emoji, 2], reason=finished(0, 0).reason)
    answer = await gateway.chat(return_token_ids=True, stream=stream, n=2)
    (request,) = gateway.engine.requests
    bodies = events(answer.text) if stream else [answer.json()]
    for index in range(2):
        chosen = [choice for body in bodies for choice in body["choices"] if choice["index"] == index]
        assert [token_id for choice in chosen for token_id in choice.get("token_ids", [])] == [*emoji, 2]
    prompts = [body["prompt_token_ids"] for body in bodies if "prompt_token_ids" in body]
    assert prompts == [list(request.prompt_token_ids)] * (2 if stream else 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_of_text_completions(gateway: GatewayServer, stream: bool):
    gateway.engine.script = says(gateway.encode("x y z"))
    answer = await gateway.complete(prompt=[[5], [6, 7]], return_token_ids=True, stream=stream)
    bodies = events(answer.text) if stream else [answer.json()]
    for index, prompt in enumerate(([5], [6, 7])):
        chosen = [choice for body in bodies for choice in body["choices"] if choice["index"] == index]
        assert [choice["prompt_token_ids"] for choice in chosen if "prompt_token_ids" in choice] == [prompt]
        found = [token_id for choice in chosen for token_id in choice.get("token_ids", [])]
        assert found == gateway.encode("x y z")


async def test_token_ids_end_with_the_token_that_completes_a_stop_string(gateway: GatewayServer):
    ids = gateway.encode("one two three four")

    async def script(request):
        yield tokens(0, 0, ids)
        yield finished(0, len(ids))

    gateway.engine.script = script
    (choice,) = (await gateway.complete(stop=" two", return_token_ids=True)).json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("one", ids[:2])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_no_token_ids_unless_asked_for(gateway: GatewayServer, kind: str, stream: bool):
    gateway.engine.script = says(gateway.encode("x"))
    assert "token_ids" not in (await getattr(gateway, kind)(stream=stream)).text


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_named_by_their_ids(gateway: GatewayServer, stream: bool):
    ids = gateway.encode("one two")
    gateway.engine.script = says(ids)
    answer = await gateway.complete(logprobs=2, return_tokens_as_token_ids=True, stream=stream)
    bodies = events(answer.text) if stream else [answer.json()]
    logprobs = [choice["logprobs"] for body in bodies for choice in body["choices"]]
    assert [token for entry in logprobs for token in entry["tokens"]] == [f"token_id:{token_id}" for token_id in ids]
    assert list(logprobs[0]["top_logprobs"][0]) == [f"token_id:{ids[0]}", "token_id:11"]

    answer = await gateway.chat(logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True, stream=stream)
    bodies = events(answer.text) if stream else [answer.json()]
    found = [choice["logprobs"] for body in bodies for choice in body["choices"] if choice["logprobs"]]
    entries = [entry for entry_list in found for entry in entry_list["content"]]
    assert [entry["token"] for entry in entries] == [f"token_id:{token_id}" for token_id in ids]
    assert bytes(entries[1]["bytes"]) == b" two", "the bytes are the token's, not its name's"
    assert entries[0]["top_logprobs"][1]["token"] == "token_id:11"


async def test_an_answer_bears_the_id_that_was_asked_for(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    assert (await gateway.chat(request_id="mine/1")).json()["id"] == "chatcmpl-mine/1"
    assert (await gateway.complete(request_id="mine/1")).json()["id"] == "cmpl-mine/1"
    assert [request.request_id for request in gateway.engine.requests] == ["chatcmpl-mine/1-0", "cmpl-mine/1-0"]


async def test_fields_that_ask_for_nothing_are_taken(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"))
    nothing: dict[str, object] = {
        "stream_interval": 1, "length_penalty": 1.0, "use_beam_search": False, "prompt_embeds": None, "documents": [],
        "functions": [], "audio": None, "kv_transfer_params": {}, "modalities": ["text"],
    }  # fmt: skip
    ignored: dict[str, object] = {
        "user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "session_id": "s", "never_heard_of": {"x": 1}, "spaces_between_special_tokens": False,
    }  # fmt: skip
    for kind in (gateway.chat, gateway.complete):
        answer = await kind(**nothing, **ignored)
        assert answer.status_code == 200, answer.text
