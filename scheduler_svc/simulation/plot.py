"""How did it go over time? KV use, running and waiting requests, and time to first token, as a PNG or SVG file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pageloom.errors import InvalidConfig, StartupError
from scheduler_svc.simulation.recorder import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")


def check_plot_file(path: Path) -> None:
    """Before the simulation, so that nobody waits for a plot that cannot be made. Raises StartupError."""
    if path.suffix not in SUFFIXES:
        raise InvalidConfig(f"--plot must name a file that ends in {' or '.join(SUFFIXES)}, not {str(path)!r}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise StartupError(f"--plot needs matplotlib; run: {sys.executable} -m pip install matplotlib") from None


def write_plot(path: Path, title: str, recorder: Recorder, num_kv_tokens: int) -> None:
    from matplotlib.figure import Figure

    # A Figure by itself needs no display and leaves no state behind, unlike pyplot.
    figure = Figure(figsize=(10, 8), layout="constrained")
    memory, load, ttft = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    _draw_memory(memory, recorder, num_kv_tokens)
    _draw_load(load, recorder)
    _draw_ttft(ttft, recorder)
    ttft.set_xlabel("seconds")
    figure.savefig(path, dpi=120, metadata=None if path.suffix == ".png" else {"Date": None})


def _draw_memory(axes: Axes, recorder: Recorder, num_kv_tokens: int) -> None:
    times = [sample.at_s for sample in recorder.samples]
    allocated = np.array([sample.num_allocated_tokens for sample in recorder.samples])
    unused = np.minimum([sample.num_unused_tokens for sample in recorder.samples], allocated)
    axes.fill_between(times, 100 * allocated / num_kv_tokens, color="tab:red", alpha=0.4, label="allocated, unused")
    used = 100 * (allocated - unused) / num_kv_tokens
    axes.fill_between(times, used, color="tab:blue", label="holds tokens")
    axes.set_ylabel("KV memory, %")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_load(axes: Axes, recorder: Recorder) -> None:
    times = [sample.at_s for sample in recorder.samples]
    axes.plot(
        times, [sample.num_running for sample in recorder.samples], color="tab:blue", linewidth=0.8, label="running"
    )
    axes.plot(
        times, [sample.num_waiting for sample in recorder.samples], color="tab:orange", linewidth=0.8, label="waiting"
    )
    axes.set_ylabel("requests")
    axes.legend(loc="upper left")


def _draw_ttft(axes: Axes, recorder: Recorder) -> None:
    for i, tenant in enumerate(recorder.tenants):
        rows = (recorder.tenant_of == i) & ~np.isnan(recorder.first_token_s)
        arrived = recorder.arrived_s[rows]
        axes.plot(arrived, recorder.first_token_s[rows] - arrived, ".", markersize=2, label=tenant or "requests")
    axes.set_yscale("log")
    axes.set_ylabel("time to first token, s")
    axes.legend(loc="upper left")
