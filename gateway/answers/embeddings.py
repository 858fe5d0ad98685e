"""The prompts of an embedding request -> their vectors."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from gateway.metrics import RequestObserver
from gateway.requests.translate_embeddings import EmbeddingJob
from pageloom.client import EngineClient
from pageloom.errors import EngineError
from pageloom.outputs import ChoiceFinished
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams


async def embed(
    client: EngineClient, answer_id: str, job: EmbeddingJob, observer: RequestObserver, *, max_at_once: int
) -> list[bytes]:
    """The vectors of all prompts, little-endian float32 [hidden]; at most `max_at_once` are at the engine at a time.

    Raises what the engine's calls raise, and then cancels the others.
    """
    vectors = [b""] * len(job.prompts)
    waiting = iter(range(len(job.prompts)))

    async def take_turns() -> None:
        for index in waiting:
            vectors[index] = await _embed_one(client, f"{answer_id}-{index}", job, index)
            observer.on_finish("stop")

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_at_once, len(job.prompts))):
                group.create_task(take_turns())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return vectors


async def _embed_one(client: EngineClient, request_id: str, job: EmbeddingJob, index: int) -> bytes:
    request = GenerateRequest(
        request_id=request_id,
        prompt_token_ids=job.prompts[index],
        sampling=SamplingParams(),
        priority=job.priority,
        cache_salt=job.cache_salt,
        tenant=job.terms.tenant,
        deadline_s=job.terms.left_s(),
        pooling=job.pooling,
    )
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            if isinstance(event, ChoiceFinished):
                event.require_success()
                if not event.embedding:
                    raise EngineError("the engine brought no embedding")
                return event.embedding
    raise EngineError("the engine ended the stream too early")
