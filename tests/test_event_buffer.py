"""Events reach a fast reader one by one and a slow one joined, complete and in order."""

import asyncio

import pytest

from pageloom import event_buffer
from pageloom.errors import Unavailable
from pageloom.event_buffer import EventBuffer
from pageloom.outputs import (
    ChoiceFinished,
    FinishReason,
    GenerateEvent,
    PromptLogprobs,
    TokenLogprobs,
    TokensGenerated,
)


def scores(*token_ids: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(-float(token_id), (token_id,), (-1.0,)) for token_id in token_ids)


def tokens(choice: int, first: int, *token_ids: int) -> TokensGenerated:
    return TokensGenerated(choice_index=choice, first_index=first, token_ids=token_ids, logprobs=scores(*token_ids))


def finished(choice: int, count: int) -> ChoiceFinished:
    return ChoiceFinished(choice_index=choice, reason=FinishReason.STOP, num_output_tokens=count, num_cached_tokens=0)


def put(buffer: EventBuffer, *events: GenerateEvent) -> None:
    for event in events:
        if isinstance(event, ChoiceFinished):
            buffer.put_finished(event)
        elif isinstance(event, PromptLogprobs):
            buffer.put_prompt_logprobs(event)
        else:
            buffer.put_tokens(event.choice_index, event.first_index, event.token_ids, event.logprobs)


def scored(first: int, *logprobs: float) -> PromptLogprobs:
    ranks = (1,) * len(logprobs)
    return PromptLogprobs(first_index=first, logprobs=logprobs, ranks=ranks, top_token_ids=(), top_logprobs=())


async def read_all(buffer: EventBuffer) -> list[GenerateEvent]:
    events = []
    while taken := await buffer.take():
        events += taken
    return events


async def test_a_fast_reader_gets_each_event():
    buffer = EventBuffer(1)
    reading = asyncio.create_task(read_all(buffer))
    sent: list[GenerateEvent] = [tokens(0, 0, 5), tokens(0, 1, 6), finished(0, 2)]
    for event in sent:
        put(buffer, event)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert await reading == sent


async def test_a_slow_reader_gets_them_joined_by_choice():
    buffer = EventBuffer(2)
    put(buffer, tokens(0, 0, 5), tokens(1, 0, 7), tokens(0, 1, 6, 8), finished(1, 1))
    before = buffer.complete
    put(buffer, finished(0, 3))
    assert (before, buffer.complete) == (False, True)
    assert await read_all(buffer) == [tokens(0, 0, 5, 6, 8), tokens(1, 0, 7), finished(1, 1), finished(0, 3)]
    assert await buffer.take() == []


async def test_what_piled_up_is_cut_into_messages_that_can_be_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_buffer, "MAX_TOKENS_PER_EVENT", 2)
    buffer = EventBuffer(1)
    put(buffer, *(tokens(0, position, position) for position in range(7, 12)), tokens(1, 0, 5))
    assert await buffer.take() == [tokens(0, 7, 7, 8), tokens(0, 9, 9, 10), tokens(0, 11, 11), tokens(1, 0, 5)]


async def test_waiting_can_be_given_up_without_loss():
    buffer = EventBuffer(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(buffer.take(), 0.01)
    put(buffer, tokens(0, 0, 1))
    assert await buffer.take() == [tokens(0, 0, 1)]


async def test_a_failure_comes_after_what_came_before_it():
    buffer = EventBuffer(2)
    put(buffer, tokens(0, 0, 1), finished(0, 1))
    buffer.fail(Unavailable("gone"))
    assert buffer.complete
    assert await buffer.take() == [tokens(0, 0, 1), finished(0, 1)]
    with pytest.raises(Unavailable, match="gone"):
        await buffer.take()


async def test_a_failure_wakes_the_reader_and_means_nothing_after_the_end():
    buffer = EventBuffer(1)
    reading = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    buffer.fail(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await reading
    ended = EventBuffer(1)
    put(ended, finished(0, 0))
    ended.fail(Unavailable("gone"))
    assert await read_all(ended) == [finished(0, 0)]


async def test_those_of_the_prompt_come_first():
    buffer = EventBuffer(1)
    put(buffer, scored(1, -1.0, -2.0), tokens(0, 0, 5), scored(3, -3.0), finished(0, 1))
    assert await read_all(buffer) == [scored(1, -1.0, -2.0), scored(3, -3.0), tokens(0, 0, 5), finished(0, 1)]


async def test_those_of_the_prompt_alone_wake_the_reader():
    buffer = EventBuffer(1)
    reading = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    put(buffer, scored(1, -1.0))
    assert await reading == [scored(1, -1.0)]
