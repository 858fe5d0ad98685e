"""Random histories of the core, each wholly decided by its seed."""

from __future__ import annotations

import random
from dataclasses import replace

from pageloom.policies import Placement, Pooling, SchedulingPolicy
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from scheduler_svc.core import Limits
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello, solo_run


def run_history(seed: int) -> PaperWorld:
    """A failure tells the seed and the last calls."""
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
                max_num_steps_in_flight=rng.choice((1, 2, 2)),
                scheduling_policy=rng.choice(list(SchedulingPolicy)),
                placement=rng.choice(list(Placement)),
                priority_ageing_s=rng.choice((0.01, 0.1, 60.0)),
            )
        )
        self.block_sizes = rng.choice(((1,), (2,), (3,), (4,), (4,), (8,), (2, 3)))
        self.worker_ids = ["a", "b", "c"][: rng.choice((1, 1, 1, 2, 2, 3))]
        self.stems = [[rng.randrange(2, 40) for _ in range(40)] for _ in range(2)] + [[7] * 40]
        self.max_prompt_len, self.max_output_len = rng.choice(((3, 24), (3, 24), (8, 16), (20, 8), (24, 24)))
        self.num_kv_tokens = rng.choice((16, 26, 26, 36))
        self.uses_priorities = rng.random() < 0.5
        self.tenants = rng.choice((("",), ("", "x"), ("x", "y", "z")))
        self.deadlines: tuple[float | None, ...] = rng.choice(((None,), (None, 1 / 16, 1.0)))
        self.actions = {
            self.submit: rng.choice((2, 4, 6)),
            self.step: 14,
            self.cancel: rng.choice((0, 0, 2)),
            self.lose: rng.choice((0, 0, 1)),
            self.drain_or_dismiss: rng.choice((0, 0, 1)),
            self.attach: 2,
            self.stale: 0.5,
            self.wait: 0.5,
            self.expire: 0.5,
            self.explain: 0.5,
        }
        self.max_num_draft_tokens = rng.choice((0, 1, 3, 7))
        self.failure_rate = rng.choice((0.0, 0.0, 0.1))
        self.poolings: tuple[Pooling | None, ...] = rng.choice(((None,), (None, None, Pooling.last, Pooling.mean)))
        self.prompt_logprobs: tuple[int | None, ...] = rng.choice(((None,), (None,), (None, None, 0, 2)))
        self.num_stages = rng.choice((1, 1, 2, 3))

    def run(self) -> None:
        self.attach()
        actions, weights = list(self.actions), list(self.actions.values())
        for action in self.rng.choices(actions, weights=weights, k=self.rng.randint(20, 50)):
            action()
        for worker_id, attachment in list(self.world.workers.items()):
            if attachment.draining:
                self.world.finish(worker_id)
                self.world.lose(worker_id)
        while len(self.world.workers) < len(self.worker_ids):
            self.attach()
        self.world.drain()
        self.world.replay()

    def submit(self) -> None:
        rng = self.rng
        prompt = (
            *rng.choice(self.stems)[: rng.randint(0, self.max_prompt_len)],
            *(rng.randrange(2, 40) for _ in range(rng.randint(0, 3))),
        )
        max_tokens = rng.randint(1, self.max_output_len) if rng.random() < 0.94 else None
        pooling = rng.choice(self.poolings)
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
                prompt_logprobs=rng.choice(self.prompt_logprobs),
                grammar="x" * rng.choice((0, 0, 0, 9)),
            ),
            n=rng.choice((1, 1, 1, 2, 3)) if pooling is None else 1,
            pooling=pooling,
            priority=rng.choice((-1, 0, 1)) if self.uses_priorities else 0,
            cache_salt=rng.choice(("", "", "", "pepper")),
            tenant=rng.choice(self.tenants),
            deadline_s=rng.choice(self.deadlines),
            include_timeline=rng.random() < 0.5,
            wait_for_tokens=rng.random() < 0.1,
        )
        self.world.submit(self.resumed(request))

    def resumed(self, request: GenerateRequest) -> GenerateRequest:
        """Now and then, the caller has part of the output already."""
        if request.sampling.max_tokens is None or request.pooling is not None or self.rng.random() < 0.7:
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
        num_in_flight = len(self.world.workers[worker_id].flights)
        # Now and then it asks for more than it may have.
        if num_in_flight == 0 or self.rng.random() < (0.5 if num_in_flight == 1 else 0.05):
            failing = [slot for slot in range(8) if self.rng.random() < self.failure_rate]
            self.world.plan(worker_id, failing)
        else:
            self.world.commit(worker_id)

    def cancel(self) -> None:
        if not self.world.streams:
            return
        request_id, choice_index = self.rng.choice(list(self.world.open_streams or self.world.streams))
        self.world.cancel(request_id, self.rng.choice(((), (choice_index,), (choice_index, 99))))

    def lose(self) -> None:
        if self.world.workers:
            self.world.lose(self.rng.choice(sorted(self.world.workers)))

    def drain_or_dismiss(self) -> None:
        """A worker gets no more work, or leaves if it has none left."""
        if self.world.workers:
            worker_id = self.rng.choice(sorted(self.world.workers))
            self.dismiss(worker_id)
            if worker_id in self.world.workers:
                self.world.drain_worker(worker_id)

    def dismiss(self, worker_id: str) -> None:
        """Sends a worker away that has finished after it was drained."""
        if self.world.workers[worker_id].draining and self.world.scheduler.is_idle(worker_id):
            self.world.lose(worker_id)

    def attach(self) -> None:
        absent = [worker_id for worker_id in self.worker_ids if worker_id not in self.world.workers]
        if absent:
            block_size = self.rng.choice(self.block_sizes)
            hello = paper_hello(
                absent[0],
                block_size=block_size,
                num_blocks=max(2, self.rng.randint(12, self.num_kv_tokens) // block_size),
                max_num_seqs=self.rng.choice((2, 5, 8)),
                max_num_batched_tokens=self.rng.choice((2, 8, 32)),
                max_num_draft_tokens=self.max_num_draft_tokens,
                num_stages=self.num_stages,
            )
            self.world.attach(hello)

    def stale(self) -> None:
        self.world.commit_strays()
        if self.world.workers:
            worker_id = self.rng.choice(sorted(self.world.workers))
            self.world.commit_stale(worker_id, epoch_offset=-1, step_offset=1)
            self.world.commit_stale(worker_id, step_offset=self.rng.choice((-1, 0, 3)))

    def wait(self) -> None:
        self.world.now += self.rng.choice((1 / 64, 0.5))

    def expire(self) -> None:
        self.world.expire()

    def explain(self) -> None:
        if self.world.streams:
            request_id, _ = self.rng.choice(list(self.world.streams))
            self.world.explain(request_id)
