"""Runs jobs on a worker group of two ranks, started once by torchrun: as a module it is one of the ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pageloom.config import WorkerConfig
from pageloom.model_files import locate_model
from pageloom.plan import Admission, BatchPlan
from pageloom.sampling_params import SamplingParams
from tests.support.free_drafts import FREE_DRAFTS
from tests.support.plan_driver import PlanDriver
from tests.support.serving import free_port
from tests.support.watched_drafter import Watched
from worker_svc.loader import open_checkpoint
from worker_svc.model_part import load_part
from worker_svc.models.llama import Llama
from worker_svc.parallel.follower import follow
from worker_svc.parallel.group import Group, Place, communication
from worker_svc.runner import ModelRunner, load_runner

LIMITS: dict[str, Any] = {
    "num_blocks": 40, "block_size": 32, "max_num_seqs": 8, "max_num_batched_tokens": 256, "num_threads": 1,
    "device": "cpu",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model to load with `settings` of WorkerConfig, and prompts to continue. With `overlaps`, which needs two stages
    and two prompts, the last stage begins its first step only when the stage before it has begun its second one.
    `num_drafts` are all run, whatever they cost."""

    model: str
    settings: dict[str, Any]
    prompts: list[list[int]]
    max_new_tokens: int
    sampling: list[dict[str, Any]] | None = None
    overlaps: bool = False
    num_drafts: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a job."""

    outputs: list[list[int]]
    prompt_logprobs: list[list[float]]
    num_accepted: int = 0
    guesses: list[list[list[int]]] = dataclasses.field(default_factory=list)


def run_jobs(folder: Path, jobs: list[Job]) -> list[Outcome]:
    """Raises AssertionError, with what the ranks wrote, if they fail."""
    jobs_file, outcomes_file = folder / "jobs.json", folder / "outcomes.json"
    jobs_file.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0",
        "--nproc-per-node", "2", "--rdzv-backend", "static", "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), "-m", "tests.support.rank_group", str(jobs_file), str(outcomes_file),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(**outcome) for outcome in json.loads(outcomes_file.read_text())]


def _run_job(job: Job) -> Outcome | None:
    """None at the ranks that follow."""
    config = WorkerConfig(model=job.model, **{**LIMITS, **job.settings})
    group = Group.join(Place.of(config, os.environ), torch.device("cpu"), None)
    outcome = None
    if job.overlaps:
        _make_stages_wait_for_each_other(group.layout.is_last)
    if group.is_leader and job.overlaps:
        outcome = _run_overlapping(load_runner(config, lambda _done, _total: None, group), job)
    elif group.is_leader:
        runner = load_runner(config, lambda _done, _total: None, group)
        sampling = None if job.sampling is None else [SamplingParams(**values) for values in job.sampling]
        watched: Watched | None = None
        if job.num_drafts:
            for owner, name, value in FREE_DRAFTS:
                setattr(owner, name, value)
            assert runner._drafter is not None
            runner._drafter = watched = Watched(runner._drafter)
            runner.warm_up()
        driver = PlanDriver(runner, num_drafts=job.num_drafts)
        outputs = driver.generate(job.prompts, job.max_new_tokens, sampling)
        scores = [
            [logprob for part in driver.prompt_logprobs.get(index, []) for logprob in part.logprobs]
            for index in range(len(job.prompts))
        ]
        outcome = Outcome(outputs=outputs, prompt_logprobs=scores, num_accepted=driver.num_accepted)
        if watched is not None:
            outcome = dataclasses.replace(outcome, guesses=[list(guess) for guess in watched.guesses])
    else:
        files = locate_model(config.model)
        checkpoint = open_checkpoint(files)
        part = load_part(config, files, checkpoint, lambda _done, _total: None, group)
        follow(group.receiver(part.device), part.model, part.cache, group.ranks(checkpoint.config.vocab_size))
    group.leave()
    return outcome


def _make_stages_wait_for_each_other(is_last: bool) -> None:
    store, forward, num_begun = dist.distributed_c10d._get_default_store(), Llama.forward, 0

    def traced(self: Llama, *args: Any) -> torch.Tensor:
        nonlocal num_begun
        num_begun += 1
        if not is_last:
            store.set(f"first stage began {num_begun}", "yes")
        elif num_begun == 1:
            # Raises an error if that does not happen while this stage has yet to compute its first step.
            store.wait(["first stage began 2"], timedelta(seconds=20))
        return forward(self, *args)

    Llama.forward = traced  # type: ignore[method-assign, assignment]


def _run_overlapping(runner: ModelRunner, job: Job) -> Outcome:
    """The two prompts, one after the other, and then their tokens in turns."""
    plans = [
        BatchPlan(
            epoch=1,
            step=slot + 1,
            snapshot=slot == 0,
            admissions=(admission(slot, prompt),),
            chunk_slots=(slot,),
            chunk_lens=(len(prompt),),
            held_slots=(0,) * slot,
        )
        for slot, prompt in enumerate(job.prompts)
    ]
    plans += [BatchPlan(epoch=1, step=step, held_slots=(step % 2,)) for step in range(3, 2 * job.max_new_tokens + 1)]
    outputs: list[list[int]] = [[], []]
    assert runner.announce(plans[0])
    for plan, following in zip(plans, [*plans[1:], None], strict=True):
        if following is not None:
            assert runner.announce(following)
            after = BatchPlan(epoch=1, step=following.step + 1, held_slots=(following.step % 2,))
            assert not runner.announce(after), "it needs the token of a step that is not finished"
        result = runner.step(plan)
        for slot, token_id in zip(result.slots, result.token_ids, strict=True):
            outputs[slot].append(token_id)
    return Outcome(outputs=outputs, prompt_logprobs=[])


def admission(slot: int, prompt: list[int]) -> Admission:
    """In blocks of its own, enough for a hundred tokens."""
    return Admission(
        slot=slot,
        token_ids=tuple(prompt),
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        block_ids=tuple(range(4 * slot, 4 * slot + 4)),
        sampling=SamplingParams(temperature=0.0, seed=0, max_tokens=50),
    )


def main(jobs_file: Path, outcomes_file: Path) -> None:
    jobs = [Job(**job) for job in json.loads(jobs_file.read_text())]
    place = Place.of(WorkerConfig(model="", tensor_parallel_size=2), os.environ)
    with communication(place, torch.device("cpu")):
        outcomes = [_run_job(job) for job in jobs]
    if outcomes and outcomes[0] is not None:
        outcomes_file.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes if outcome]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
