"""Prompts -> their embeddings, from the engine; and how alike two of them are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pageloom.errors import EngineError
from pageloom.llm.engine import Engine
from pageloom.llm.prompts import Prompt
from pageloom.outputs import ChoiceFinished
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams

MAX_AT_ONCE = 128
_NO_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """`vector` is float32 [hidden], as the model gives it."""

    prompt: Prompt
    request_id: str
    vector: npt.NDArray[np.float32]
    num_cached_tokens: int

    @property
    def unit_vector(self) -> npt.NDArray[np.float32]:
        norm = np.linalg.norm(self.vector)
        return self.vector / norm if norm else self.vector


async def pool_all(engine: Engine, prompts: Sequence[Prompt], on_pooled: Callable[[Pooled], object]) -> list[Pooled]:
    """In the order of the prompts. Raises what the engine's calls raise, and then cancels the others."""
    pooled: dict[int, Pooled] = {}
    waiting = iter(enumerate(prompts))

    async def take_turns() -> None:
        for index, prompt in waiting:
            pooled[index] = await _pool(engine, prompt)
            on_pooled(pooled[index])

    async with engine.failing():
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(MAX_AT_ONCE, len(prompts))):
                    group.create_task(take_turns())
        except* Exception as errors:
            raise errors.exceptions[0] from None
    return [pooled[index] for index in range(len(prompts))]


async def _pool(engine: Engine, prompt: Prompt) -> Pooled:
    request = GenerateRequest(
        request_id=engine.new_id(),
        prompt_token_ids=prompt.token_ids,
        sampling=_NO_SAMPLING,
        cache_salt=engine.cache_salt(prompt),
        pooling=engine.info.pooling,
    )
    async with aclosing(engine.client.generate(request)) as events:
        async for event in events:
            if isinstance(event, ChoiceFinished):
                event.require_success()
                return Pooled(
                    prompt=prompt,
                    request_id=request.request_id,
                    vector=np.frombuffer(event.embedding, dtype="<f4"),
                    num_cached_tokens=event.num_cached_tokens,
                )
    raise EngineError("the engine ended the stream too early")
