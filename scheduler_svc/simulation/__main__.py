"""`pageloom simulate`: reads the trace, runs it, prints the table, writes the files that were asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pageloom.errors import StartupError
from pageloom.simulation_config import SimulationConfig
from pageloom.supervision import ParentLink, run_service
from scheduler_svc.simulation.plot import check_plot_file, write_plot
from scheduler_svc.simulation.report import print_report
from scheduler_svc.simulation.simulate import Outcome, prepare_trace, simulate


def main(config: SimulationConfig) -> None:
    """Raises StartupError."""
    if config.plot is not None:
        check_plot_file(Path(config.plot))
    for path in filter(None, (config.json, config.plot)):
        _check_writable(Path(path))
    trace = prepare_trace(config)
    outcome = simulate(config, trace)
    title = f"{trace.name} on {_hardware(config)}, {config.kv_policy}"
    console = Console()
    print_report(console, title, outcome.report)
    for reason in outcome.recorder.refusals[:1]:
        console.print(f"The first request refused: {reason}", style="yellow", soft_wrap=True)
    console.print(_scheduler_line(outcome), style="dim")
    if config.json is not None:
        with _writing(config.json):
            _write_json(Path(config.json), config, outcome)
    if config.plot is not None:
        with _writing(config.plot):
            write_plot(Path(config.plot), title, outcome.recorder, outcome.report.memory.num_tokens)


def _check_writable(path: Path) -> None:
    """Before the simulation, like all that can be known before it. Raises StartupError."""
    if not path.parent.is_dir():
        raise StartupError(f"{path} cannot be written: there is no directory {path.parent}")
    if path.is_dir():
        raise StartupError(f"{path} cannot be written: it is a directory")


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # A full disk names no file.
        raise StartupError(f"{path} cannot be written: {error.strerror}") from None


def _hardware(config: SimulationConfig) -> str:
    gpus = f"{config.tensor_parallel_size} × {config.gpu}" if config.tensor_parallel_size > 1 else config.gpu
    return f"{config.num_workers} worker{'s' if config.num_workers > 1 else ''} of {gpus} with {config.model}"


def _scheduler_line(outcome: Outcome) -> str:
    times, num_steps = outcome.recorder.scheduler_times, max(outcome.report.num_steps, 1)
    return (
        f"On this host the scheduler took {1e6 * times.plan_s / num_steps:.0f} µs to plan a step, "
        f"{1e6 * times.commit_s / num_steps:.0f} µs to commit one and "
        f"{1e6 * times.submit_s / max(outcome.report.num_requests, 1):.0f} µs for each request."
    )


def _write_json(path: Path, config: SimulationConfig, outcome: Outcome) -> None:
    """Times in seconds, lengths in tokens, shares between 0 and 1."""
    settings = json.loads(config.to_json())
    path.write_text(json.dumps({"settings": settings, "report": outcome.report.to_json()}, indent=2) + "\n")


if __name__ == "__main__":
    simulation_config = SimulationConfig.from_json(sys.argv[1])
    run_service("simulate", ParentLink(None), lambda: main(simulation_config))
