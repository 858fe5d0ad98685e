"""Runs jobs on a worker group of two ranks, started once by torchrun: as a module it is one of the ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from pageloom.config import WorkerConfig
from pageloom.model_files import locate_model
from pageloom.sampling_params import SamplingParams
from tests.support.plan_driver import PlanDriver
from tests.support.serving import free_port
from worker_svc.loader import open_checkpoint
from worker_svc.model_part import load_part
from worker_svc.parallel.follower import follow
from worker_svc.parallel.group import Group, Place, communication
from worker_svc.runner import load_runner

LIMITS: dict[str, Any] = {
    "num_blocks": 40, "block_size": 32, "max_num_seqs": 8, "max_num_batched_tokens": 256, "num_threads": 1,
    "device": "cpu",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model to load with `settings` of WorkerConfig, and prompts to continue."""

    model: str
    settings: dict[str, Any]
    prompts: list[list[int]]
    max_new_tokens: int
    sampling: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a job. `weights_bytes` are of each rank."""

    outputs: list[list[int]]
    prompt_logprobs: list[list[float]]
    weights_bytes: list[int]
    error: str = ""


def run_jobs(folder: Path, jobs: list[Job], num_ranks: int = 2) -> list[Outcome]:
    """Raises AssertionError, with what the ranks wrote, if they fail."""
    jobs_file, outcomes_file = folder / "jobs.json", folder / "outcomes.json"
    jobs_file.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0",
        "--nproc-per-node", str(num_ranks), "--rdzv-backend", "static", "--master-addr", "127.0.0.1",
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
    group = Group.join(Place.of(config, os.environ), None)
    outcome = None
    if group.is_leader:
        runner = load_runner(config, lambda _done, _total: None, group)
        sampling = None if job.sampling is None else [SamplingParams(**values) for values in job.sampling]
        driver = PlanDriver(runner)
        outputs = driver.generate(job.prompts, job.max_new_tokens, sampling)
        scores = [
            [logprob for part in driver.prompt_logprobs.get(index, []) for logprob in part.logprobs]
            for index in range(len(job.prompts))
        ]
        outcome = Outcome(outputs=outputs, prompt_logprobs=scores, weights_bytes=[])
    else:
        checkpoint = open_checkpoint(locate_model(config.model))
        part = load_part(config, checkpoint, lambda _done, _total: None, group)
        follow(group.receiver(part.device), part.model, part.cache, group.ranks(checkpoint.config.vocab_size))
    group.leave()
    return outcome


def main(jobs_file: Path, outcomes_file: Path) -> None:
    jobs = [Job(**job) for job in json.loads(jobs_file.read_text())]
    place = Place.of(WorkerConfig(model="", tensor_parallel_size=2), os.environ)
    with communication(place, torch.device("cpu")):
        outcomes = [_run_job(job) for job in jobs]
    if outcomes and outcomes[0] is not None:
        outcomes_file.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes if outcome]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
