"""What does a scheduler step cost? The core alone, decode only, and the plan's way over the wire.

Start it with `python -m benchmarks.scheduler --help`.
"""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.latency import Distribution
from benchmarks.machine import Machine
from benchmarks.report import write_figures
from pageloom import wire
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult, WorkerHello
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from scheduler_svc.core import Limits, Scheduler
from scheduler_svc.recording import RecordingFile, RecordingScheduler

VOCAB_SIZE = 128_256
PROMPT_LENS = (64, 400)
# (workers, running sequences on each)
CASES = ((1, 256), (1, 1024), (2, 1024), (4, 1024), (8, 1024))
NUM_WIRE_ROUNDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds for one step of one worker, and of the plan of one that only continues."""

    num_workers: int
    num_seqs: int
    plan_s: Distribution
    commit_s: Distribution
    step_s: Distribution
    plan_bytes: int
    plan_wire_s: float
    result_bytes: int
    result_wire_s: float


def main(
    num_steps: Annotated[int, typer.Option(help="Steps measured for each worker of each case.")] = 600,
    block_size: Annotated[int, typer.Option(help="Tokens in a KV block.")] = 32,
    steps_in_flight: Annotated[int, typer.Option(help="Plans out at one worker.", min=1, max=2)] = 2,
    record: Annotated[Path | None, typer.Option(help="Record to this file, to see what that costs.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Time plan and commit of the scheduler's core while every running sequence decodes."""
    figures = [
        _measure(num_workers, num_seqs, num_steps, block_size, steps_in_flight, record)
        for num_workers, num_seqs in CASES
    ]
    machine = Machine.describe()
    _print_table(machine, figures)
    write_figures(json_file, machine, cases=figures)


class Fleet:
    """A core whose workers run `num_seqs` sequences each, and answer with random tokens."""

    def __init__(
        self,
        num_workers: int,
        num_seqs: int,
        num_steps: int,
        block_size: int,
        steps_in_flight: int,
        record: Path | None = None,
    ) -> None:
        limits = Limits(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=8192,
            max_num_queued_seqs=num_workers * num_seqs,
            max_num_steps_in_flight=steps_in_flight,
        )
        recording = None if record is None else RecordingFile(record, limits)
        self.core = Scheduler(limits) if recording is None else RecordingScheduler(limits, recording.put)
        self.worker_ids = [f"worker-{index}" for index in range(num_workers)]
        self._rng = random.Random(0)
        self._steps: dict[str, list[tuple[BatchPlan, float]]] = {worker_id: [] for worker_id in self.worker_ids}
        # All outlive the measurement, whenever their prompts are done.
        max_tokens = 2 * num_steps + num_seqs
        num_blocks = num_seqs * (PROMPT_LENS[1] + max_tokens + block_size) // block_size
        for epoch, worker_id in enumerate(self.worker_ids, 1):
            self.core.attach(_hello(worker_id, num_seqs, num_blocks, block_size), epoch, 0.0)
        for index in range(num_workers * num_seqs):
            self.core.submit(self._request(str(index), max_tokens), 0.0)

    def step(self, worker_id: str) -> tuple[float, float, BatchPlan, StepResult, bool]:
        """One more step of a worker: seconds of its plan and commit, and whether it only continued everything."""
        steps = self._steps[worker_id]
        while True:
            started_s = time.perf_counter()
            plan = self.core.plan(worker_id, 0.0)
            planned_s = time.perf_counter() - started_s
            if plan is None:
                break
            steps.append((plan, planned_s))
        plan, planned_s = steps.pop(0)
        step = self.core.groups[worker_id].in_flight[0]
        slots = tuple(step.drawing_slots.tolist())
        token_ids = tuple(self._rng.randrange(VOCAB_SIZE) for _ in slots)
        result = StepResult(epoch=plan.epoch, step=plan.step, slots=slots, token_ids=token_ids)
        started_s = time.perf_counter()
        self.core.commit(worker_id, result, 0.0)
        committed_s = time.perf_counter() - started_s
        return planned_s, committed_s, plan, result, len(step.decode_slots) == self.core.limits.max_num_seqs

    def _request(self, request_id: str, max_tokens: int) -> GenerateRequest:
        prompt_token_ids = tuple(self._rng.randrange(VOCAB_SIZE) for _ in range(self._rng.randint(*PROMPT_LENS)))
        sampling = SamplingParams(seed=0, max_tokens=max_tokens, ignore_eos=True)
        return GenerateRequest(request_id=request_id, prompt_token_ids=prompt_token_ids, sampling=sampling)


def _measure(
    num_workers: int, num_seqs: int, num_steps: int, block_size: int, steps_in_flight: int, record: Path | None
) -> Figures:
    fleet = Fleet(num_workers, num_seqs, num_steps, block_size, steps_in_flight, record)
    # As the scheduler's process does at its start.
    gc.collect()
    gc.freeze()
    plans_s: list[float] = []
    commits_s: list[float] = []
    while len(plans_s) < num_steps * num_workers:
        for worker_id in fleet.worker_ids:
            planned_s, committed_s, plan, result, only_decodes = fleet.step(worker_id)
            if only_decodes:
                plans_s.append(planned_s)
                commits_s.append(committed_s)
    continuing = BatchPlan(epoch=plan.epoch, step=plan.step)
    plan_message, result_message = wire.plan_to_proto(continuing), wire.result_to_proto(result)
    plan_bytes, plan_wire_s = _wire_cost(
        lambda: wire.plan_to_proto(continuing).SerializeToString(),
        lambda data: wire.plan_from_proto(plan_message.FromString(data)),
    )
    result_bytes, result_wire_s = _wire_cost(
        lambda: wire.result_to_proto(result).SerializeToString(),
        lambda data: wire.result_from_proto(result_message.FromString(data)),
    )
    return Figures(
        num_workers=num_workers,
        num_seqs=num_seqs,
        plan_s=_distribution(plans_s),
        commit_s=_distribution(commits_s),
        step_s=_distribution([one + other for one, other in zip(plans_s, commits_s, strict=True)]),
        plan_bytes=plan_bytes,
        plan_wire_s=plan_wire_s,
        result_bytes=result_bytes,
        result_wire_s=result_wire_s,
    )


def _distribution(samples: list[float]) -> Distribution:
    distribution = Distribution.of(samples)
    assert distribution is not None
    return distribution


def _wire_cost(encode: Callable[[], bytes], decode: Callable[[bytes], object]) -> tuple[int, float]:
    data = encode()
    started_s = time.perf_counter()
    for _ in range(NUM_WIRE_ROUNDS):
        decode(encode())
    return len(data), (time.perf_counter() - started_s) / NUM_WIRE_ROUNDS


def _hello(worker_id: str, num_seqs: int, num_blocks: int, block_size: int) -> WorkerHello:
    model = ModelInfo(
        name="none",
        digest="0" * 64,
        architecture="none",
        vocab_size=VOCAB_SIZE,
        max_model_len=1 << 17,
        eos_token_ids=(2,),
        dtype="bfloat16",
        weights_bytes=1,
        hidden_size=4096,
    )
    cache = CacheInfo(block_size=block_size, num_blocks=num_blocks, kv_bytes=1)
    return WorkerHello(
        worker_id=worker_id,
        boot_id="0",
        model=model,
        cache=cache,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=8192,
    )


def _print_table(machine: Machine, figures: list[Figures]) -> None:
    table = Table(title="Scheduler step, decode only", caption=str(machine), title_justify="left")
    for heading in ("workers", "seqs each", "", "plan ms", "commit ms", "step ms", "plan: B, us", "result: B, us"):
        table.add_column(heading, justify="right")
    for figure in figures:
        table.add_row(
            str(figure.num_workers),
            f"{figure.num_seqs:,}",
            "p50\np99",
            *(f"{one.p50 * 1e3:.3f}\n{one.p99 * 1e3:.3f}" for one in (figure.plan_s, figure.commit_s, figure.step_s)),
            f"{figure.plan_bytes}, {figure.plan_wire_s * 1e6:.1f}",
            f"{figure.result_bytes:,}, {figure.result_wire_s * 1e6:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
