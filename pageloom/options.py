"""Every command-line option once: name, environment twin, help, accepted values.

Names are vLLM's where the meaning is the same.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pageloom import config
from pageloom.config import (
    BlockSize,
    CpuKernels,
    Device,
    Dtype,
    LogLevel,
    PoolingChoice,
    Quantization,
    SpeculativeMethod,
)
from pageloom.hardware_profiles import GPUS, MODELS
from pageloom.option_values import parse_address, parse_size, parse_size_or_zero
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.setting_checks import MAX_NUM_WORKERS, MAX_PORT
from pageloom.simulation_config import Allocator, KvPolicy

DEFAULT_BLOCK_SIZE = BlockSize(config.DEFAULT_BLOCK_SIZE)


def option(flag: str, text: str, *aliases: str, **settings: object) -> object:
    """A typer option with its environment twin."""
    name = flag.split("/")[0].lstrip("-")
    envvar = "PAGELOOM_" + name.upper().replace("-", "_")
    return typer.Option(flag, *aliases, help=text, envvar=envvar, **settings)  # type: ignore[arg-type]


Model = Annotated[
    str,
    typer.Argument(
        help="Folder, .gguf file or Hugging Face id. Default: the embedded SmolLM2-135M-Instruct.",
        envvar="PAGELOOM_MODEL",
        show_default=False,
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    option("--served-model-name", "Name in /v1/models; may be repeated. Default: the model's own."),
]
ChatTemplate = Annotated[str | None, option("--chat-template", "Jinja file to use instead of the model's.")]
GenerationConfig = Annotated[
    str,
    option(
        "--generation-config",
        "Where sampling defaults come from: auto: the model; vllm: nowhere, as if it had none; "
        "or a folder with a generation_config.json.",
        metavar="SOURCE",
    ),
]
AllowedOrigins = Annotated[
    list[str] | None,
    option(
        "--allowed-origins",
        "Origin whose web pages may use the API from a browser, * for any; may be repeated. Default: none.",
    ),
]
ToolCallParser = Annotated[
    str,
    option("--tool-call-parser", "How the model writes tool calls: auto takes it from the chat template; "
            "docs/tools.md has the names.", metavar="NAME"),
]  # fmt: skip
ReasoningParser = Annotated[
    str,
    option("--reasoning-parser", "How the model marks what it thinks before it answers: auto, none, or a name of "
            "docs/tools.md.", metavar="NAME"),
]  # fmt: skip
DtypeOption = Annotated[Dtype, option("--dtype", "Element type of weights and KV blocks.")]
QuantizationOption = Annotated[
    Quantization,
    option("--quantization", "gguf: a GGUF file's quantized weights stay so (on a CPU); none: they become --dtype."),
]
DeviceOption = Annotated[Device, option("--device", "Where the model runs.")]
CpuKernelsOption = Annotated[
    CpuKernels,
    option("--cpu-kernels", "What computes on a CPU: auto takes the C++ kernels for bfloat16 where they run."),
]
BatchInvariant = Annotated[
    bool,
    option("--batch-invariant/--no-batch-invariant", "Start only with kernels whose results do not depend on what "
            "else is in the batch. The C++ kernels are such, with this option or without."),
]  # fmt: skip
PoolingOption = Annotated[
    PoolingChoice,
    option("--pooling", "Which hidden state is a prompt's embedding: the last token's, or the mean of all. auto: as "
            "the model folder's 1_Pooling/config.json says, else the last."),
]  # fmt: skip
SpeculativeMethodOption = Annotated[
    SpeculativeMethod,
    option("--speculative-method", "Where tokens are guessed from, to be verified several in a step: ngram: from "
            "what followed the same words earlier in prompt or answer; suffix: in recent answers too; draft-model and "
            "eagle3: by --speculative-model, which need not be told apart here. Answers stay the same."),
]  # fmt: skip
SpeculativeModel = Annotated[
    str | None,
    option("--speculative-model", "Model that guesses: folder, .gguf file or Hugging Face id of a smaller one with "
            "the same vocabulary, or of an EAGLE-3 head; or layers:N, the first N layers of the model itself.",
            metavar="MODEL"),
]  # fmt: skip
SuffixMemoryBytes = Annotated[
    int,
    option("--suffix-memory-bytes", "Memory for the recent answers that suffix looks in, such as 64MiB; 0: none.",
            parser=parse_size_or_zero, metavar="BYTES"),
]  # fmt: skip
NumSpeculativeTokens = Annotated[
    int, option("--num-speculative-tokens", "Most tokens that are guessed at a time for one answer.", min=1, max=64)
]
PromptLookupMin = Annotated[
    int, option("--prompt-lookup-min", "Fewest tokens that must come up again for ngram to guess.", min=1)
]
PromptLookupMax = Annotated[int, option("--prompt-lookup-max", "Most tokens that ngram compares.", min=1)]
RanksPerLayer = Annotated[int, option("--tensor-parallel-size", "Ranks that share each layer of the model.", min=1)]
PipelineParallelSize = Annotated[
    int, option("--pipeline-parallel-size", "Stages that the layers of the model are dealt to.", min=1)
]
NumNodes = Annotated[int, option("--nnodes", "Machines that a worker's ranks are spread over, evenly.", min=1)]
NodeRank = Annotated[int, option("--node-rank", "Which of them this is. The one with 0 talks to the scheduler.", min=0)]
MasterAddress = Annotated[str, option("--master-addr", "Where the others reach machine 0.", metavar="HOST")]
MasterPort = Annotated[int, option("--master-port", "Port of machine 0 at which the ranks meet.", min=1, max=MAX_PORT)]
MaxModelLen = Annotated[
    int | None,
    option("--max-model-len", "Longest prompt plus output in tokens, such as 8k. Default: the model's.",
            parser=parse_size, metavar="TOKENS"),
]  # fmt: skip
NumThreads = Annotated[
    int | None,
    option("--num-threads", "CPU threads of the model, or of each of its ranks. Default: one per core.", min=1),
]
BlockSizeOption = Annotated[BlockSize, option("--block-size", "Tokens in a KV block.")]
NumBlocks = Annotated[
    int | None,
    option("--num-gpu-blocks-override", "KV blocks in the pool, on any device; overrides sizes.", min=1),
]
GrammarCache = Annotated[
    int,
    option("--grammar-cache-bytes", "Memory for compiled grammars, about, such as 256MiB; the least recently used go.",
            parser=parse_size, metavar="BYTES"),
]  # fmt: skip
KvCacheMemory = Annotated[
    int | None,
    option(
        "--kv-cache-memory-bytes",
        "KV memory, such as 2GiB. Default on a CPU: a quarter of what is free, at most 4GiB.",
        parser=parse_size,
        metavar="BYTES",
    ),
]
MemoryUtilization = Annotated[
    float, option("--gpu-memory-utilization", "Part of the GPU's memory to use, above 0 to 1.")
]
PrefixCaching = Annotated[
    bool,
    option("--enable-prefix-caching/--no-enable-prefix-caching", "Reuse KV blocks of equal prefixes."),
]
MaxNumSeqs = Annotated[int, option("--max-num-seqs", "Most sequences in a step.", min=1)]
MaxNumBatchedTokens = Annotated[
    int,
    option("--max-num-batched-tokens", "Most tokens in a step; longer prompts are taken in chunks.",
            parser=parse_size, metavar="TOKENS"),
]  # fmt: skip
MaxNumQueuedSeqs = Annotated[int, option("--max-num-queued-seqs", "Most sequences in the queue; more get 503.", min=1)]
MaxStepsInFlight = Annotated[
    int,
    option("--max-steps-in-flight", "Steps sent to a worker ahead of their results; 2 keeps it busy.", min=1, max=2),
]
SchedulingPolicyOption = Annotated[
    SchedulingPolicy,
    option("--scheduling-policy", "Who goes first: who came first, by priority, or tenants in equal shares."),
]
PlacementOption = Annotated[
    Placement, option("--placement", "Which worker a request goes to: by cached prefix and load, by load, or in turn.")
]
PriorityAgeing = Annotated[
    float, option("--priority-ageing", "Seconds in the queue that outweigh one level of priority, above 0.")
]
Host = Annotated[str, option("--host", "Address to listen on.")]
Port = Annotated[int, option("--port", "Port to listen on.", min=0, max=MAX_PORT)]
MaxBodyBytes = Annotated[int, option("--max-body-bytes", "Largest request body.", parser=parse_size, metavar="BYTES")]
MaxStoredResponses = Annotated[
    int, option("--max-stored-responses", "Answers of /v1/responses that can be asked for again.", min=0)
]
MaxStoredResponseBytes = Annotated[
    int,
    option("--max-stored-response-bytes", "Memory for them.", parser=parse_size, metavar="BYTES"),
]
ResponseTtl = Annotated[float, option("--response-ttl", "Seconds after which they are forgotten.", min=0.0)]
BatchPaths = Annotated[
    list[str] | None,
    typer.Argument(
        help="The two files, unless -i and -o name them; then what `serve` takes as MODEL, if one is to be started.",
        metavar="IN OUT [MODEL]",
        show_default=False,
    ),
]
InputFile = Annotated[
    str | None,
    option("--input-file", "Requests, a line of JSON each; - for standard input.", "-i", metavar="FILE"),
]
OutputFile = Annotated[
    str | None,
    option("--output-file", "File for their answers, in the order in which they come; - for standard output.", "-o",
            metavar="FILE"),
]  # fmt: skip
Url = Annotated[
    str | None,
    option("--url", "Server to send them to, instead of MODEL served here for the time of the run.", metavar="URL"),
]
ApiKey = Annotated[str | None, option("--api-key", "Key for the server at --url.", metavar="KEY")]
MaxConcurrency = Annotated[int, option("--max-concurrency", "Requests under way at once.", min=1)]
BatchDir = Annotated[
    str | None,
    option("--batch-dir", "Folder for uploaded files and batches, which outlast the process there. Default: a "
            "temporary one.", metavar="FOLDER"),
]  # fmt: skip
BatchConcurrency = Annotated[
    int, option("--batch-concurrency", "Requests of batch files that run at once, behind those of clients.", min=1)
]
MaxFileBytes = Annotated[int, option("--max-file-bytes", "Largest uploaded file.", parser=parse_size, metavar="BYTES")]
MaxStoredFiles = Annotated[int, option("--max-stored-files", "Files that are kept.", min=0)]
MaxStoredFileBytes = Annotated[
    int, option("--max-stored-file-bytes", "Disk space for them.", parser=parse_size, metavar="BYTES")
]
FileTtl = Annotated[float, option("--file-ttl", "Seconds after which they are deleted.", min=1.0)]
SchedulerPort = Annotated[
    int,
    option("--scheduler-port", "Port of the scheduler's gRPC services; 0: a free one.", min=0, max=MAX_PORT),
]
SchedulerAddress = Annotated[
    str,
    option("--scheduler", "Address of the scheduler's gRPC services, HOST:PORT or unix:/PATH.",
            parser=parse_address, metavar="ADDRESS"),
]  # fmt: skip
SocketPath = Annotated[
    str | None,
    option("--uds", "Unix socket to listen on besides the port. Default: none.", metavar="PATH"),
]
MetricsHost = Annotated[str, option("--metrics-host", "Address of this service's /metrics.")]
MetricsPort = Annotated[
    int | None, option("--metrics-port", "Port of this service's /metrics. Default: none.", min=1, max=MAX_PORT)
]
WorkerMetricsPort = Annotated[
    int | None,
    option("--worker-metrics-port", "Port of the worker's /metrics. Default: none.", min=1, max=MAX_PORT),
]
SchedulerMetricsPort = Annotated[
    int | None,
    option("--scheduler-metrics-port", "Port of the scheduler's /metrics. Default: none.", min=1, max=MAX_PORT),
]
Simulate = Annotated[
    str | None,
    option(
        "--simulate",
        "Load no model: draw arbitrary tokens in the time a roofline says, such as h200:llama-3-8b, "
        "h200:llama-3-70b:tp4 or fixed:2ms.",
        metavar="PROFILE",
    ),
]
TraceOption = Annotated[
    str,
    option("--trace", "azure-conv-excerpt, mooncake-conv-excerpt, sharegpt, alpaca, or a file of an Azure (CSV) or "
            "Mooncake (JSON lines) trace, also with .gz."),
]  # fmt: skip
GpuOption = Annotated[str, option("--gpu", f"One of {', '.join(GPUS)}.")]
SimulatedModel = Annotated[str, option("--model", f"One of {', '.join(MODELS)}.")]
TensorParallelSize = Annotated[int, option("--tensor-parallel-size", "GPUs that share one worker's model.", min=1)]
NumWorkers = Annotated[int, option("--num-workers", "Workers behind the scheduler.", min=1)]
SimulatedModelLen = Annotated[
    int | None,
    option("--max-model-len", "Longest prompt plus output in tokens, such as 8k; may exceed the model's, its default.",
            parser=parse_size, metavar="TOKENS"),
]  # fmt: skip
SimulatedKvMemory = Annotated[
    int | None,
    option("--kv-cache-memory-bytes", "KV memory of a worker, such as 2GiB. Default: what the weights leave.",
            parser=parse_size, metavar="BYTES"),
]  # fmt: skip
KvPolicyOption = Annotated[
    KvPolicy, option("--kv-policy", "KV memory in blocks, or for comparison in one piece for each sequence.")
]
AllocatorOption = Annotated[Allocator, option("--allocator", "Where pieces go when KV memory is not paged.")]
MaxTokens = Annotated[
    int, option("--max-tokens", "Most output tokens that requests ask for; they end as in the trace.", min=1)
]
HopLatency = Annotated[
    float, option("--hop-latency", "Seconds from scheduler to worker and back, beside the step.", min=0.0)
]
NumRequests = Annotated[
    int | None, option("--num-requests", "Requests to take. Default: all of a trace, 1000 of a dataset.", min=1)
]
RequestRate = Annotated[
    float | None, option("--request-rate", "Mean requests per second. Default: the trace's; 2 for a dataset.")
]
TimeScale = Annotated[float | None, option("--time-scale", "Arrivals so many times as far apart.")]
LengthScale = Annotated[float, option("--length-scale", "Prompts and outputs so many times as long.")]
Tenants = Annotated[
    str, option("--tenants", "Give requests to tenants at random, by weights such as a=1,b=10.", metavar="WEIGHTS")
]
Seed = Annotated[int, option("--seed", "Of lengths and arrivals that are made up, and of tenants.", min=0)]
PlotFile = Annotated[
    str | None, option("--plot", "Draw memory, load and latency over time to a .png or .svg file.", metavar="FILE")
]
JsonFile = Annotated[str | None, option("--json", "Write the figures to this file.", metavar="FILE")]
WorkerId = Annotated[
    str | None,
    option("--worker-id", "Name of this worker, unique at its scheduler. Default: host name and process id."),
]
DataParallelSize = Annotated[
    int,
    option(
        "--data-parallel-size",
        "Workers, each with a copy of the model, behind the one scheduler.",
        min=1,
        max=MAX_NUM_WORKERS,
    ),
]
ApiServerCount = Annotated[
    int,
    option("--api-server-count", "Gateway processes that share the port; more than one store no files.",
            min=1, max=64),
]  # fmt: skip
EndWithParent = Annotated[
    bool,
    option("--end-with-parent/--no-end-with-parent", "Stop when the process that started this one ends (Linux)."),
]
StepTimeout = Annotated[
    float,
    option("--step-timeout", "Seconds without a step's result after which its worker counts as lost.", min=1.0),
]
DrainTimeout = Annotated[
    float,
    option("--shutdown-timeout", "Seconds that running requests get after SIGTERM or Ctrl-C.", min=0.0),
]
LogLevelOption = Annotated[LogLevel, option("--log-level", "Least severe log lines to write.")]
Record = Annotated[
    str | None,
    option("--record", "File for all that the scheduler is told and plans, prompts included; see docs/replay.md.",
            metavar="FILE"),
]  # fmt: skip
Recording = Annotated[str, typer.Argument(help="File that `--record` wrote.", metavar="FILE", show_default=False)]
Until = Annotated[int | None, option("--until", "Stop after so many plans. Default: at the end.", min=1)]
