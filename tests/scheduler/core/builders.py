"""Short ways to say what a test is about: a request, a world with one worker."""

from __future__ import annotations

from pageloom.policies import Placement, Pooling, SchedulingPolicy
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
    grammar: str = "",
    prompt_logprobs: int | None = None,
    tenant: str = "",
    deadline_s: float | None = None,
    include_timeline: bool = False,
    wait_for_tokens: bool = False,
    pooling: Pooling | None = None,
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
            grammar=grammar,
            prompt_logprobs=prompt_logprobs,
        ),
        n=n,
        priority=priority,
        cache_salt=cache_salt,
        resume=resume,
        tenant=tenant,
        deadline_s=deadline_s,
        include_timeline=include_timeline,
        wait_for_tokens=wait_for_tokens,
        pooling=pooling,
    )


def make_limits(
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_num_queued_seqs: int = 100,
    enable_prefix_caching: bool = True,
    max_num_lost_runs: int = 3,
    max_num_steps_in_flight: int = 1,
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.fair,
    placement: Placement = Placement.cache_aware,
    priority_ageing_s: float = 60.0,
) -> Limits:
    """One step at a time unless a test is about more: the story is shorter then."""
    return Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_queued_seqs=max_num_queued_seqs,
        enable_prefix_caching=enable_prefix_caching,
        max_num_lost_runs=max_num_lost_runs,
        max_num_steps_in_flight=max_num_steps_in_flight,
        scheduling_policy=scheduling_policy,
        placement=placement,
        priority_ageing_s=priority_ageing_s,
    )


def make_world(limits: Limits | None = None, *, block_size: int = 4, num_blocks: int = 64) -> PaperWorld:
    """With one worker, "a"."""
    world = PaperWorld(limits or make_limits())
    world.attach(paper_hello("a", block_size=block_size, num_blocks=num_blocks))
    return world
