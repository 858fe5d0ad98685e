"""Does `LLM.generate` keep up with the served engine? `python -m benchmarks.offline --help`.

In each round the same prompts, with the lengths of the `mixed` workload, go through `LLM.generate`, then through
`pageloom serve` as a closed loop, and with `--peer` through vLLM's `LLM.generate`. Each is started, warmed up, measured
and stopped by itself. The ratio of two is the median of the ratios within the rounds.
"""

import json
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from benchmarks.errors import BenchmarkError
from benchmarks.latency import summarize
from benchmarks.load import run_round
from benchmarks.machine import Machine
from benchmarks.report import new_table, write_figures
from benchmarks.server_process import ServerCommand, free_port, ready, started, with_port
from benchmarks.workloads import NUM_RESERVED_IDS, WORKLOADS, CompletionRequest, Workload, round_requests
from pageloom import LLM, SamplingParams
from pageloom.llm.prompts import TokensPrompt

OURS, SERVED, PEER = "LLM.generate", "served", "peer"
_PEER_SCRIPT = Path(__file__).with_name("offline_peer.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each round does. `workload.concurrency` is that of the served loop."""

    model: str
    max_model_len: int
    workload: Workload
    num_prompts: int
    vocab_size: int
    timeout_s: float
    peer: str | None

    def requests(self, round_name: str, count: int | None = None) -> list[CompletionRequest]:
        scale = (self.num_prompts if count is None else count) / self.workload.num_requests
        return round_requests(self.workload, round_name=round_name, seed=0, vocab_size=self.vocab_size, scale=scale)


def main(
    model: Annotated[str, typer.Argument(help="As for `pageloom serve`; with --peer a folder.")] = "",
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts of a round.")] = 512,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that the server has at once.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each is started and measured.")] = 3,
    max_model_len: Annotated[int, typer.Option(min=2048, help="Context of all of them.")] = 4096,
    vocab_size: Annotated[
        int, typer.Option(min=2 * NUM_RESERVED_IDS, help="Prompts use ids below this and above the special tokens.")
    ] = 49152,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a start or a request may take.")] = 1800.0,
    peer: Annotated[
        str | None, typer.Option(help='A Python that has vLLM, such as "env VLLM_CPU_KVCACHE_SPACE=2 PYTHON".')
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Compare LLM.generate with the server, and with vLLM's, on the same prompts."""
    plan = Plan(
        model=model,
        max_model_len=max_model_len,
        workload=replace(WORKLOADS["mixed"], concurrency=concurrency),
        num_prompts=num_prompts,
        vocab_size=vocab_size,
        timeout_s=timeout,
        peer=peer,
    )
    console = Console(stderr=True)
    rates: dict[str, list[float]] = {}
    try:
        for index in range(rounds):
            for name, measure in ((OURS, _ours), (SERVED, _served), *(((PEER, _peers),) if peer else ())):
                console.print(f"round {index + 1} of {rounds}: {name}")
                rates.setdefault(name, []).append(measure(plan, f"round-{index}"))
    except BenchmarkError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    machine = Machine.describe()
    _print_table(machine, rates)
    write_figures(json_file, machine, plan=plan, output_tokens_per_s=rates)


def _ours(plan: Plan, round_name: str) -> float:
    """Output tokens/s, from the call to its return."""
    with LLM(plan.model, max_model_len=plan.max_model_len) as llm:
        _generate(llm, plan.requests("warmup", plan.workload.concurrency))
        requests = plan.requests(round_name)
        started_s = time.perf_counter()
        num_tokens = _generate(llm, requests)
        return num_tokens / (time.perf_counter() - started_s)


def _generate(llm: LLM, requests: list[CompletionRequest]) -> int:
    prompts = [TokensPrompt(prompt_token_ids=request.prompt_token_ids) for request in requests]
    params = [
        SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True) for request in requests
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def _served(plan: Plan, round_name: str) -> float:
    """Output tokens/s, from the first request sent to the last token received."""
    command = f"{sys.executable} -m pageloom serve {plan.model} --port {{port}} --max-model-len {plan.max_model_len}"
    port = free_port()
    with started(with_port(ServerCommand(label=SERVED, command=command), port)) as process:
        return uvloop.run(_load(process, port, plan, round_name))


async def _load(process: subprocess.Popen[bytes], port: int, plan: Plan, round_name: str) -> float:
    server = await ready(process, port, plan.timeout_s)
    for name, count in (("warmup", plan.workload.concurrency), (round_name, plan.num_prompts)):
        requests = plan.requests(name, count)
        measured = await run_round(server.endpoint, server.model, plan.workload, requests, plan.timeout_s)
    return summarize([measured]).output_tokens_per_s


def _peers(plan: Plan, round_name: str) -> float:
    """As `_ours`, in a process of the other Python."""
    assert plan.peer is not None
    asked = {
        "model": plan.model,
        "max_model_len": plan.max_model_len,
        "warm_up": _listed(plan.requests("warmup", plan.workload.concurrency)),
        "requests": _listed(plan.requests(round_name)),
    }
    outcome = subprocess.run(
        [*shlex.split(plan.peer), "-P", str(_PEER_SCRIPT)], input=json.dumps(asked), capture_output=True, text=True
    )
    try:
        answer = json.loads(outcome.stdout.splitlines()[-1])
        return float(answer["num_output_tokens"] / answer["duration_s"])
    except (LookupError, ValueError):
        last_lines = "\n".join(outcome.stderr.splitlines()[-20:])
        raise BenchmarkError(f"the peer ended with code {outcome.returncode}\n{last_lines}") from None


def _listed(requests: list[CompletionRequest]) -> list[tuple[tuple[int, ...], int]]:
    return [(request.prompt_token_ids, request.num_output_tokens) for request in requests]


def _print_table(machine: Machine, rates: dict[str, list[float]]) -> None:
    table = new_table("output tokens/s, and the ratio to it of LLM.generate in each round", str(machine))
    for heading in ("", "median", "by round", "ratio", "by round"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, each in rates.items():
        ratios = [ours / other for ours, other in zip(rates[OURS], each, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(each):,.1f}",
            ", ".join(f"{rate:,.1f}" for rate in each),
            f"{statistics.median(ratios):.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in ratios),
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
