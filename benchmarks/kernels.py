"""What does a step of the model cost on a CPU? The worker's own steps, by hand-made plans, on each kind of kernels.

Start it with `python -m benchmarks.kernels --help`.
"""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import write_figures
from pageloom.config import DEFAULT_BLOCK_SIZE, CpuKernels, Quantization, WorkerConfig
from pageloom.plan import Admission, BatchPlan
from pageloom.sampling_params import SamplingParams
from worker_svc.runner import ModelRunner, load_runner

CONTEXT = 512
BATCH_SIZES = (1, 8, 32)
PREFILL_LENS = (1024, 2048)
# --cpu-kernels and --quantization of each column. The second differs from the first if the model is a quantized GGUF.
PATHS = {
    "C++, bfloat16": (CpuKernels.auto, Quantization.none),
    "C++, weights as in the file": (CpuKernels.auto, Quantization.auto),
    "PyTorch, bfloat16": (CpuKernels.torch, Quantization.none),
}
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=1 << 20, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Seconds of one kind of step."""

    path: str
    kernels: str
    case: str
    median_s: float
    best_s: float
    num_steps: int


def main(
    model: Annotated[str, typer.Argument(help="Folder or .gguf file. Default: the embedded model.")] = "",
    num_steps: Annotated[int, typer.Option(help="Decode steps measured for each batch size.", min=1)] = 60,
    num_prefills: Annotated[int, typer.Option(help="Prefills measured for each length.", min=1)] = 5,
    path: Annotated[list[str] | None, typer.Option(help=f"Which of: {'; '.join(PATHS)}. Default: all.")] = None,
    num_threads: Annotated[int | None, typer.Option(help="CPU threads of the model. Default: one per core.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Time the worker's step: decoding at a context of 512 tokens, and prefill in one chunk."""
    figures: list[Figure] = []
    for name in path or PATHS:
        if name not in PATHS:
            raise typer.BadParameter(f"{name!r} is none of: {'; '.join(PATHS)}")
        figures += _measure(name, model, num_steps, num_prefills, num_threads)
    machine = Machine.describe()
    _print_table(machine, figures)
    write_figures(json_file, machine, steps=figures)


def _measure(path: str, model: str, num_steps: int, num_prefills: int, num_threads: int | None) -> Iterator[Figure]:
    cpu_kernels, quantization = PATHS[path]
    config = WorkerConfig(
        model=model,
        device="cpu",
        dtype="bfloat16",
        num_threads=num_threads,
        # As many as the largest batch takes, so that it has touched them all before the prefills are measured.
        num_blocks=max(BATCH_SIZES) * -(-(CONTEXT + num_steps) // DEFAULT_BLOCK_SIZE),
        max_num_seqs=max(BATCH_SIZES),
        max_num_batched_tokens=max(PREFILL_LENS),
        cpu_kernels=cpu_kernels.value,
        quantization=quantization.value,
    )
    runner = load_runner(config, lambda _done, _total: None)
    runner.warm_up()
    driver = Driver(runner)
    for batch_size in BATCH_SIZES:
        # The context is as long as the table says in the middle of what is measured.
        samples = driver.decode(batch_size, CONTEXT - num_steps // 2, num_steps)
        yield _figure(path, runner, f"decode, {batch_size} at {CONTEXT}", samples)
    for length in PREFILL_LENS:
        samples = [driver.prefill(length) for _ in range(num_prefills)]
        yield _figure(path, runner, f"prefill of {length}", samples)


def _figure(path: str, runner: ModelRunner, case: str, samples: list[float]) -> Figure:
    return Figure(
        path=path,
        kernels=runner.kernels,
        case=case,
        median_s=median(samples),
        best_s=min(samples),
        num_steps=len(samples),
    )


class Driver:
    """Runs one batch after the other, each as an epoch of its own over all blocks in random order."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._rng = random.Random(0)
        self._epoch = 0

    def decode(self, batch_size: int, prompt_len: int, num_steps: int) -> list[float]:
        """Seconds of each of `num_steps` steps in which all sequences continue."""
        plans = self._prefill_plans([prompt_len] * batch_size, num_steps)
        for plan in plans:
            self._runner.step(plan)
        gc.collect()
        return [self._timed(BatchPlan(epoch=self._epoch, step=len(plans) + i)) for i in range(1, num_steps + 1)]

    def prefill(self, length: int) -> float:
        """Seconds of a step that runs one prompt."""
        (plan,) = self._prefill_plans([length], 0)
        return self._timed(plan)

    def _timed(self, plan: BatchPlan) -> float:
        started_s = time.perf_counter()
        self._runner.step(plan)
        return time.perf_counter() - started_s

    def _prefill_plans(self, prompt_lens: list[int], num_more: int) -> list[BatchPlan]:
        """One prompt a step. The sequences before it go on, and stop only with the epoch."""
        self._epoch += 1
        block_size = self._runner.cache_info.block_size
        free = list(range(self._runner.cache_info.num_blocks))
        self._rng.shuffle(free)
        vocab_size = self._runner.model_info.vocab_size
        plans: list[BatchPlan] = []
        for slot, prompt_len in enumerate(prompt_lens):
            num_blocks = -(-(prompt_len + num_more + 1) // block_size)
            admission = Admission(
                slot=slot,
                token_ids=tuple(self._rng.randrange(vocab_size) for _ in range(prompt_len)),
                num_prompt_tokens=prompt_len,
                num_computed_tokens=0,
                block_ids=tuple(free.pop() for _ in range(num_blocks)),
                sampling=GREEDY,
            )
            plans.append(
                BatchPlan(
                    epoch=self._epoch,
                    step=slot + 1,
                    snapshot=slot == 0,
                    admissions=(admission,),
                    chunk_slots=(slot,),
                    chunk_lens=(prompt_len,),
                    held_slots=tuple(range(slot)),
                )
            )
        return plans


def _print_table(machine: Machine, figures: list[Figure]) -> None:
    table = Table(title=f"One step of the model, ms, median / best. {machine}", title_justify="left")
    table.add_column("step")
    paths = list(dict.fromkeys(figure.path for figure in figures))
    for path in paths:
        kernels = next(figure.kernels for figure in figures if figure.path == path)
        table.add_column(f"{path}\n({kernels})", justify="right")
    by_key = {(figure.case, figure.path): figure for figure in figures}
    for case in dict.fromkeys(figure.case for figure in figures):
        cells = [by_key[case, path] for path in paths]
        table.add_row(case, *(f"{1e3 * cell.median_s:,.1f} / {1e3 * cell.best_s:,.1f}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
