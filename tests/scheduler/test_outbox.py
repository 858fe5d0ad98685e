"""Events reach a fast reader one by one and a slow one joined, complete and in order."""

import asyncio

from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, TokenLogprobs, TokensGenerated
from scheduler_svc.outbox import Outbox


def tokens(choice: int, first: int, *token_ids: int) -> TokensGenerated:
    logprobs = tuple(TokenLogprobs(-float(token), (token,), (-1.0,)) for token in token_ids)
    return TokensGenerated(choice_index=choice, first_index=first, token_ids=token_ids, logprobs=logprobs)


def finished(choice: int, count: int) -> ChoiceFinished:
    return ChoiceFinished(choice_index=choice, reason=FinishReason.STOP, num_output_tokens=count, num_cached_tokens=0)


async def read_all(outbox: Outbox) -> list[GenerateEvent]:
    return [event async for event in outbox.events()]


async def test_a_fast_reader_gets_each_event():
    outbox = Outbox(1)
    reading = asyncio.create_task(read_all(outbox))
    sent: list[GenerateEvent] = [tokens(0, 0, 5), tokens(0, 1, 6), finished(0, 2)]
    for event in sent:
        outbox.put(event)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert await reading == sent


async def test_a_slow_reader_gets_them_joined_by_choice():
    outbox = Outbox(2)
    for event in (tokens(0, 0, 5), tokens(1, 0, 7), tokens(0, 1, 6, 8), finished(1, 1), finished(0, 3)):
        outbox.put(event)
    assert await read_all(outbox) == [tokens(0, 0, 5, 6, 8), tokens(1, 0, 7), finished(1, 1), finished(0, 3)]


async def test_what_arrives_while_the_reader_holds_an_event_is_not_lost():
    outbox = Outbox(1)
    outbox.put(tokens(0, 0, 1))
    events = outbox.events()
    assert await anext(events) == tokens(0, 0, 1)
    outbox.put(tokens(0, 1, 2))
    outbox.put(finished(0, 2))
    assert [event async for event in events] == [tokens(0, 1, 2), finished(0, 2)]
