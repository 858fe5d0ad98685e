"""Random histories against the paper model: each output equals its solo run, whatever happens around it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from scheduler_svc.core import Limits
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello, solo_run

NUM_HISTORIES = 2000
NUM_SHARDS = 8


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_histories(shard: int):
    for seed in range(shard, NUM_HISTORIES, NUM_SHARDS):
        run_history(seed)


def run_history(seed: int) -> PaperWorld:
    """One history, wholly decided by its seed. A failure tells the seed and the story."""
    history = History(random.Random(seed))
    try:
        history.run()
    except Exception as error:
        error.add_note(f"history {seed}, the last calls:")
        for what, value in history.world.story[-40:]:
            error.add_note(f"{what}: {value}")
        raise
    return history.world


class History:
    """Draws what happens next. Each history has its own limits, workers and habits, so that rare mixtures occur."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = PaperWorld(
            Limits(
                max_num_seqs=rng.choice((1, 3, 5, 8)),
                max_num_batched_tokens=rng.choice((1, 3, 8, 16, 64)),
                max_num_queued_seqs=rng.choice((3, 50)),
                enable_prefix_caching=rng.random() < 0.8,
                max_num_lost_runs=rng.choice((1, 2, 100)),
            )
        )
        self.block_sizes = rng.choice(((1,), (2,), (3,), (4,), (4,), (8,), (2, 3)))
        self.worker_ids = ["a", "b", "c"][: rng.choice((1, 1, 1, 1, 2, 3))]
        self.stems = [[rng.randrange(2, 40) for _ in range(40)] for _ in range(2)] + [[7] * 40]
        self.uses_priorities = rng.random() < 0.5
        self.actions = {
            self.submit: rng.choice((2, 4, 8)),
            self.step: 12,
            self.cancel: rng.choice((0, 0, 2)),
            self.lose: rng.choice((0, 0, 1)),
            self.attach: 2,
            self.stale: 1,
        }
        self.failure_rate = rng.choice((0.0, 0.0, 0.05))

    def run(self) -> None:
        self.attach()
        for _ in range(self.rng.randint(20, 70)):
            (action,) = self.rng.choices(list(self.actions), weights=list(self.actions.values()))
            action()
        while len(self.world.workers) < len(self.worker_ids):
            self.attach()
        self.world.drain()

    def submit(self) -> None:
        rng = self.rng
        prompt = (
            *rng.choice(self.stems)[: rng.choice((rng.randint(0, 8), rng.randint(0, 24)))],
            *(rng.randrange(2, 40) for _ in range(rng.randint(0, 3))),
        )
        max_tokens = rng.choice((None, rng.randint(1, 12), rng.randint(1, 24), rng.randint(12, 30)))
        request = GenerateRequest(
            request_id=f"r{len(self.world.streams)}",
            prompt_token_ids=prompt or (2,),
            sampling=SamplingParams(
                seed=rng.randrange(3),
                max_tokens=max_tokens,
                min_tokens=rng.randint(0, min(max_tokens or 1, 4)),
                ignore_eos=rng.random() < 0.5,
                stop_token_ids=tuple(rng.sample(range(40), rng.choice((0, 0, 3)))),
                logprobs=rng.choice((None, None, 0)),
            ),
            n=rng.choice((1, 1, 1, 2, 3)),
            priority=rng.choice((-1, 0, 1)) if self.uses_priorities else 0,
            cache_salt=rng.choice(("", "", "", "pepper")),
        )
        self.world.submit(self.resumed(request))

    def resumed(self, request: GenerateRequest) -> GenerateRequest:
        """Now and then, the caller has part of the output already."""
        if request.sampling.max_tokens is None or self.rng.random() < 0.7:
            return request
        solo_runs = [solo_run(request.prompt_token_ids, request.sampling, index) for index in range(request.n)]
        resume = tuple(
            (index, tuple(solo.token_ids[: self.rng.randrange(len(solo.token_ids))]))
            for index, solo in enumerate(solo_runs)
            if self.rng.random() < 0.7
        )
        return replace(request, resume=resume)

    def step(self) -> None:
        """Takes one worker on by half a step, so that the others and other calls come between."""
        if not self.world.workers:
            return
        worker_id = self.rng.choice(sorted(self.world.workers))
        flight = self.world.flights.get(worker_id)
        if flight is None:
            self.world.plan(worker_id)
        else:
            failing = [slot for slot in flight.runs if self.rng.random() < self.failure_rate]
            self.world.commit(worker_id, failing)

    def cancel(self) -> None:
        if not self.world.streams:
            return
        request_id, choice_index = self.rng.choice(list(self.world.open_streams or self.world.streams))
        self.world.cancel(request_id, self.rng.choice(((), (choice_index,), (choice_index, 99))))

    def lose(self) -> None:
        if self.world.workers:
            self.world.lose(self.rng.choice(sorted(self.world.workers)))

    def attach(self) -> None:
        absent = [worker_id for worker_id in self.worker_ids if worker_id not in self.world.workers]
        if absent:
            block_size = self.rng.choice(self.block_sizes)
            hello = paper_hello(
                absent[0],
                block_size=block_size,
                num_blocks=max(2, self.rng.randint(12, 36) // block_size),
                max_num_seqs=self.rng.choice((2, 5, 8)),
                max_num_batched_tokens=self.rng.choice((2, 8, 32)),
            )
            self.world.attach(hello)

    def stale(self) -> None:
        if self.world.workers:
            worker_id = self.rng.choice(sorted(self.world.workers))
            self.world.commit_stale(worker_id, epoch_offset=-1)
            self.world.commit_stale(worker_id, step_offset=self.rng.choice((-1, 1)))
