"""The options of a worker whose model is split over several ranks, added to the commands that start one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pageloom import config
from pageloom import options as opt

_OPTIONS: tuple[tuple[str, Any, object], ...] = (
    ("tensor_parallel_size", opt.RanksPerLayer, 1),
    ("pipeline_parallel_size", opt.PipelineParallelSize, 1),
    ("nnodes", opt.NumNodes, 1),
    ("node_rank", opt.NodeRank, 0),
    ("master_addr", opt.MasterAddress, config.DEFAULT_HOST),
    ("master_port", opt.MasterPort, config.DEFAULT_MASTER_PORT),
)


def takes_parallel_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options besides its own; their values are in its context."""
    return opt.with_options(command, _OPTIONS)
