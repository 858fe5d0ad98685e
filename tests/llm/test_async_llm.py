"""`AsyncLLM`: streams, and what ends them."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest
import pytest_asyncio

from pageloom import AsyncLLM, RequestOutputKind, SamplingParams
from pageloom.client import EngineClient
from pageloom.errors import DuplicateRequest, InvalidRequest, Unavailable

PROMPT = "The capital of France is"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


@pytest_asyncio.fixture
async def engine(address: str) -> AsyncGenerator[AsyncLLM]:
    async with AsyncLLM(address=address) as running:
        yield running


async def wait_until_idle(address: str) -> None:
    async with asyncio.timeout(10), EngineClient(address) as client:
        # The service pushes no counts, so a test has to ask.
        while (await client.info()).num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_outputs_grow(engine: AsyncLLM):
    texts = []
    async for output in engine.generate(PROMPT, GREEDY, "mine"):
        assert output.request_id == "mine"
        texts.append(output.outputs[0].text)
        last = output
    assert last.finished
    assert last.outputs[0].finish_reason == "length"
    assert len(texts) > 1
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


async def test_deltas_and_the_final_output_alone(engine: AsyncLLM):
    async def outputs(kind: RequestOutputKind) -> list[str]:
        params = SamplingParams(temperature=0.0, max_tokens=8, output_kind=kind)
        return [output.outputs[0].text async for output in engine.generate(PROMPT, params)]

    (final,) = await outputs(RequestOutputKind.FINAL_ONLY)
    deltas = await outputs(RequestOutputKind.DELTA)
    assert len(deltas) > 1
    assert "".join(deltas) == final


async def test_many_at_once(engine: AsyncLLM):
    async def last(number: int) -> str:
        async for output in engine.generate(f"{number} plus one is", GREEDY):
            text = output.outputs[0].text
        return text

    together = await asyncio.gather(*map(last, range(12)))
    assert together[3] == await last(3)


async def test_leaving_a_stream_ends_it(engine: AsyncLLM, address: str):
    async for output in engine.generate(PROMPT, ENDLESS):
        if len(output.outputs[0].token_ids) >= 2:
            break
    await wait_until_idle(address)


async def test_cancelling_the_reader_ends_it(engine: AsyncLLM, address: str):
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in engine.generate(PROMPT, ENDLESS):
            begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await wait_until_idle(address)


async def test_abort(engine: AsyncLLM, address: str):
    async for output in engine.generate(PROMPT, ENDLESS, "aborted"):
        if len(output.outputs[0].token_ids) == 1:
            with pytest.raises(DuplicateRequest, match="'aborted'"):
                await anext(engine.generate(PROMPT, GREEDY, "aborted"))
            await engine.abort("aborted")
            await engine.abort("unknown")
    assert output.finished
    assert output.outputs[0].finish_reason == "abort"
    await wait_until_idle(address)


async def test_chat_and_embed(engine: AsyncLLM):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    async for output in engine.chat(question, GREEDY, json_schema={"enum": ["Paris", "Rome"]}):
        text = output.outputs[0].text
    assert text in ('"Paris"', '"Rome"')
    assert (await engine.embed("a cat")).outputs.hidden_size == 576
    assert engine.get_tokenizer().eos_token == "<|im_end|>"
    assert engine.get_default_sampling_params() == SamplingParams()


async def test_what_is_wrong_is_named(engine: AsyncLLM):
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        await anext(engine.generate(""))
    for name, value in (("sampling_params", 5), ("request_id", 5), ("priority", "first")):
        with pytest.raises(InvalidRequest, match=f"^{name} must be"):
            await anext(engine.generate("a", **{name: value}))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="does not run"):
        await anext(AsyncLLM(address="unused:1").generate("a"))


async def test_starting_twice_starts_one_engine(address: str):
    llm = AsyncLLM(address=address)
    await llm.start()
    with pytest.raises(RuntimeError, match="runs already"):
        await llm.start()
    await llm.shutdown()
    async with llm:
        assert [output.finished async for output in llm.generate("a", SamplingParams(max_tokens=1))] == [True]
    with pytest.raises(Unavailable):
        await AsyncLLM(address="127.0.0.1:1").start()
