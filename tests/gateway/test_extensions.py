"""Of several samples the best, and where the time went."""

from typing import Any

import pytest

from pageloom.outputs import ChoiceFinished, FinishReason, TokenLogprobs, TokensGenerated
from pageloom.timeline import Run, Timeline, Wait, WaitReason
from tests.gateway.test_chat import events
from tests.support.gateway_server import GatewayServer
from tests.support.scripted_engine import Script, finished, says, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
TIMELINE = Timeline(
    waits=(Wait(reason=WaitReason.BLOCKS, start_s=0.0, end_s=0.25, num_ahead=1, behind_request_ids=("a",)),),
    runs=(Run(worker_id="w", start_s=0.25, end_s=0.75, num_cached_tokens=16, num_steps=3),),
    first_token_s=0.5,
    finished_s=0.75,
)
AS_JSON = {
    "waits": [
        {
            "reason": "blocks", "start_s": 0.0, "end_s": 0.25, "num_ahead": 1, "behind_request_ids": ["a"],
            "num_missing_blocks": 0,
        }
    ],
    "runs": [
        {
            "worker_id": "w", "start_s": 0.25, "end_s": 0.75, "num_cached_tokens": 16, "num_steps": 3,
            "num_held_steps": 0, "preempted_by": "", "worker_lost": False,
        }
    ],
    "first_token_s": 0.5,
    "finished_s": 0.75,
}  # fmt: skip


def samples(gateway: GatewayServer, *choices: tuple[str, float]) -> Script:
    """Choices with a text and the log-probability of each of its tokens."""

    async def script(request):
        assert request.sampling.logprobs is not None
        for index, (text, logprob) in enumerate(choices):
            ids = tuple(gateway.encode(text))
            logprobs = tuple(TokenLogprobs(logprob, (), ()) for _ in ids)
            yield TokensGenerated(choice_index=index, first_index=0, token_ids=ids, logprobs=logprobs)
            yield finished(index, len(ids))

    return script


async def test_the_likeliest_per_token_are_returned_best_first(gateway: GatewayServer):
    texts = [("bad bad", -3.0), ("a long and good answer", -0.5), ("better", -0.25), ("worst", -9.0)]
    gateway.engine.script = samples(gateway, *texts)
    body = (await gateway.complete(n=2, best_of=4, prompt=["x", "y"], echo=True)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "xbetter"),
        (1, "xa long and good answer"),
        (2, "ybetter"),
        (3, "ya long and good answer"),
    ]
    assert all(choice["logprobs"] is None for choice in body["choices"]), "they were not asked for"
    assert [request.n for request in gateway.engine.requests] == [4, 4]
    assert body["usage"]["completion_tokens"] == 2 * sum(len(gateway.encode(text)) for text, _ in texts)


async def test_logprobs_come_with_the_best_if_asked_for(gateway: GatewayServer):
    gateway.engine.script = samples(gateway, ("no", -2.0), ("yes", -1.0))
    (choice,) = (await gateway.complete(best_of=2, logprobs=3)).json()["choices"]
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("yes", [-1.0])
    assert gateway.engine.requests[0].sampling.logprobs == 3


async def test_as_many_samples_as_choices_is_nothing_special(gateway: GatewayServer):
    gateway.engine.script = says(gateway.encode("x"), gateway.encode("y"))
    response = await gateway.complete(n=2, best_of=2, stream=True)
    assert response.status_code == 200
    assert gateway.engine.requests[0].sampling.logprobs is None


def with_timeline(token_ids: list[int]) -> Script:
    async def script(request):
        assert request.include_timeline
        for choice in range(request.n):
            yield tokens(choice, 0, token_ids)
            yield ChoiceFinished(
                choice_index=choice, reason=FinishReason.LENGTH, num_output_tokens=len(token_ids),
                num_cached_tokens=0, timeline=TIMELINE,
            )  # fmt: skip

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_each_choice_tells_where_its_time_went(gateway: GatewayServer, kind: str, stream: bool):
    gateway.engine.script = with_timeline(gateway.encode("one two"))
    response = await getattr(gateway, kind)(include_timeline=True, n=2, stream=stream)
    if stream:
        chunks: list[dict[str, Any]] = [choice for body in events(response.text) for choice in body["choices"]]
        assert all(("timeline" in choice) == (choice["finish_reason"] is not None) for choice in chunks)
        last = [choice for choice in chunks if choice["finish_reason"]]
    else:
        last = response.json()["choices"]
    assert [choice["timeline"] for choice in last] == [AS_JSON, AS_JSON]


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_it_is_shown_unless_asked_for(gateway: GatewayServer, stream: bool):
    gateway.engine.script = says(gateway.encode("x"))
    assert "timeline" not in (await gateway.chat(stream=stream)).text
    assert not gateway.engine.requests[0].include_timeline


@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeline_comes_after_a_stop_string_too(gateway: GatewayServer, stream: bool):
    engine, token_ids = gateway.engine, gateway.encode("one two STOP three")

    async def script(request):
        yield tokens(0, 0, token_ids)
        yield tokens(0, len(token_ids), token_ids)
        await engine.until(lambda: engine.was_cancelled(request, 0))
        yield finished(0, len(token_ids), FinishReason.CANCELLED, timeline=TIMELINE)

    engine.script = script
    response = await gateway.complete(stop="STOP", include_timeline=True, stream=stream)
    bodies = events(response.text) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert "".join(choice["text"] for choice in choices) == "one two "
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "STOP")
    assert choices[-1]["timeline"] == AS_JSON
