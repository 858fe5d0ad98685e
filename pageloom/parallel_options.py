"""The options of a worker whose model is split over several ranks, added to the commands that start one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pageloom import config
from pageloom import options as opt
from pageloom.setting_checks import MAX_PORT

RanksPerLayer = Annotated[int, opt.option("--tensor-parallel-size", "Ranks that share each layer of the model.", min=1)]
PipelineParallelSize = Annotated[
    int, opt.option("--pipeline-parallel-size", "Stages that the layers of the model are dealt to.", min=1)
]
NumNodes = Annotated[int, opt.option("--nnodes", "Machines that a worker's ranks are spread over, evenly.", min=1)]
NodeRank = Annotated[
    int, opt.option("--node-rank", "Which of them this is. The one with 0 talks to the scheduler.", min=0)
]
MasterAddress = Annotated[str, opt.option("--master-addr", "Where the others reach machine 0.", metavar="HOST")]
MasterPort = Annotated[
    int, opt.option("--master-port", "Port of machine 0 at which the ranks meet.", min=1, max=MAX_PORT)
]

_OPTIONS: tuple[tuple[str, Any, object], ...] = (
    ("tensor_parallel_size", RanksPerLayer, 1),
    ("pipeline_parallel_size", PipelineParallelSize, 1),
    ("nnodes", NumNodes, 1),
    ("node_rank", NodeRank, 0),
    ("master_addr", MasterAddress, config.DEFAULT_HOST),
    ("master_port", MasterPort, config.DEFAULT_MASTER_PORT),
)


def takes_parallel_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options besides its own; their values are in its context."""
    return opt.with_options(command, _OPTIONS)
