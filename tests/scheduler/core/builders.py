"""Short ways to say what a test is about: a request, a world with one worker."""

from __future__ import annotations

from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from scheduler_svc.core import Limits
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello


def make_request(
    request_id: str = "r",
    prompt: int | tuple[int, ...] = 5,
    *,
    max_tokens: int | None = 8,
    n: int = 1,
    priority: int = 0,
    cache_salt: str = "",
    resume: tuple[tuple[int, tuple[int, ...]], ...] = (),
    seed: int = 0,
    min_tokens: int = 0,
    ignore_eos: bool = True,
    stop_token_ids: tuple[int, ...] = (),
    logprobs: int | None = None,
) -> GenerateRequest:
    """A prompt given as a length is one that shares no prefix with those of other request_ids."""
    if isinstance(prompt, int):
        start = sum(request_id.encode())
        prompt = tuple(2 + (start * (position + 1) + position) % 37 for position in range(prompt))
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
            logprobs=logprobs,
        ),
        n=n,
        priority=priority,
        cache_salt=cache_salt,
        resume=resume,
    )


def make_limits(
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_num_queued_seqs: int = 100,
    enable_prefix_caching: bool = True,
    max_num_lost_runs: int = 3,
) -> Limits:
    return Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_queued_seqs=max_num_queued_seqs,
        enable_prefix_caching=enable_prefix_caching,
        max_num_lost_runs=max_num_lost_runs,
    )


def make_world(limits: Limits | None = None, *, block_size: int = 4, num_blocks: int = 64) -> PaperWorld:
    """With one worker, "a"."""
    world = PaperWorld(limits or make_limits())
    world.attach(paper_hello("a", block_size=block_size, num_blocks=num_blocks))
    return world
