"""The command line, the only reader of flags and environment: `pageloom serve`, each service alone, and the tools."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer

from pageloom import __version__, config, simulation_config
from pageloom import options as opt
from pageloom.config import GatewayConfig, ReplayConfig, SchedulerConfig, ServiceConfig, WorkerConfig
from pageloom.errors import StartupError
from pageloom.form_limits import FormLimits
from pageloom.grammar_limits import GrammarLimits
from pageloom.model_files import model_name
from pageloom.option_groups import HTTP, MODEL, POLICY, QUEUE, STEP, TEXT, limit_options, limits_of, takes
from pageloom.option_names import settings_of
from pageloom.request_limits import RequestLimits
from pageloom.serve import serve_stack
from pageloom.service_process import service_environment
from pageloom.simulation_config import Allocator, KvPolicy, SimulationConfig
from pageloom.stack_config import StackConfig
from pageloom.supervision import end_when_parent_ends

app = typer.Typer(
    name="pageloom",
    help="Serve large language models. Every option can be set by its environment variable too.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Plain text: the boxed form cuts the names of options on a terminal of 80 columns.
    rich_markup_mode=None,
)


def main() -> None:
    """Entry point; a StartupError becomes one line on stderr and exit code 1."""
    try:
        app()
    except StartupError as error:
        print(f"pageloom: {error}", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pageloom {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the command itself; `--version` acts in its callback."""


@app.command()
@takes(TEXT, MODEL, STEP, POLICY, QUEUE, HTTP, limit_options(RequestLimits, FormLimits, GrammarLimits))
def serve(
    context: typer.Context,
    model: opt.Model = "",
    host: opt.Host = config.DEFAULT_HOST,
    port: opt.Port = config.DEFAULT_PORT,
    scheduler_port: opt.SchedulerPort = 0,
    scheduler_metrics_port: opt.SchedulerMetricsPort = None,
    worker_metrics_port: opt.WorkerMetricsPort = None,
    data_parallel_size: opt.DataParallelSize = 1,
    api_server_count: opt.ApiServerCount = 1,
    shutdown_timeout: opt.DrainTimeout = config.DEFAULT_DRAIN_TIMEOUT_S,
    end_with_parent: opt.EndWithParent = False,
    log_level: opt.LogLevelOption = config.LogLevel.warning,
) -> None:
    """Serve MODEL on this machine: gateway, scheduler and workers, each a process."""
    if end_with_parent:
        end_when_parent_ends()
    sys.exit(serve_stack(_stack_config(context.params)))


@app.command()
@takes(STEP, POLICY, QUEUE)
def scheduler(
    context: typer.Context,
    host: opt.Host = config.DEFAULT_HOST,
    port: opt.Port = config.DEFAULT_SCHEDULER_PORT,
    uds: opt.SocketPath = None,
    metrics_host: opt.MetricsHost = config.DEFAULT_HOST,
    metrics_port: opt.MetricsPort = None,
    shutdown_timeout: opt.DrainTimeout = config.DEFAULT_DRAIN_TIMEOUT_S,
    log_level: opt.LogLevelOption = config.LogLevel.info,
) -> None:
    """Run the scheduler alone; workers and gateways dial it."""
    _become("scheduler_svc", settings_of(SchedulerConfig, context.params))


@app.command()
@takes(MODEL, STEP, limit_options(GrammarLimits))
def worker(
    context: typer.Context,
    model: opt.Model = "",
    simulate: opt.Simulate = None,
    scheduler: opt.SchedulerAddress = config.DEFAULT_SCHEDULER_ADDRESS,
    worker_id: opt.WorkerId = None,
    metrics_host: opt.MetricsHost = config.DEFAULT_HOST,
    metrics_port: opt.MetricsPort = None,
    shutdown_timeout: opt.DrainTimeout = config.DEFAULT_DRAIN_TIMEOUT_S,
    log_level: opt.LogLevelOption = config.LogLevel.info,
) -> None:
    """Run one worker, which loads MODEL and attaches to a scheduler."""
    # Unique at the scheduler, wherever its workers run; in a container the host name is the container's.
    worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}"
    limits = limits_of(GrammarLimits, context.params)
    _become("worker_svc", settings_of(WorkerConfig, context.params, worker_id=worker_id, grammar_limits=limits))


@app.command()
@takes(TEXT, HTTP, limit_options(RequestLimits, FormLimits, GrammarLimits))
def gateway(
    context: typer.Context,
    model: opt.Model = "",
    scheduler: opt.SchedulerAddress = config.DEFAULT_SCHEDULER_ADDRESS,
    host: opt.Host = config.DEFAULT_HOST,
    port: opt.Port = config.DEFAULT_PORT,
    shutdown_timeout: opt.DrainTimeout = config.DEFAULT_DRAIN_TIMEOUT_S,
    log_level: opt.LogLevelOption = config.LogLevel.info,
) -> None:
    """Run one HTTP gateway, which needs MODEL's tokenizer and chat template but not its weights."""
    _become("gateway", _gateway_config(context.params))


@app.command()
@takes(TEXT, MODEL, STEP)
def run_batch(
    context: typer.Context,
    input_file: opt.InputFile,
    output_file: opt.OutputFile,
    model: opt.Model = "",
    url: opt.Url = None,
    api_key: opt.ApiKey = None,
    max_concurrency: opt.MaxConcurrency = config.DEFAULT_MAX_NUM_SEQS,
    enable_prefix_caching: opt.PrefixCaching = True,
    data_parallel_size: opt.DataParallelSize = 1,
    log_level: opt.LogLevelOption = config.LogLevel.warning,
) -> None:
    """Answer a file of requests, in the form of OpenAI's batches, with MODEL served for that time or at --url."""
    # An HTTP client, which the services need not have.
    from pageloom.run_batch import MAX_LINE_BYTES, RunBatchConfig
    from pageloom.run_batch import run_batch as run

    params = context.params
    batch_config = RunBatchConfig(
        input_file=input_file, output_file=output_file, url=url, api_key=api_key, max_concurrency=max_concurrency
    )
    stack_config = StackConfig(
        scheduler=settings_of(SchedulerConfig, params),
        worker=settings_of(WorkerConfig, params),
        # A line is one body here, however long.
        gateway=settings_of(
            GatewayConfig, params, port=0, served_model_names=_names(params), max_body_bytes=MAX_LINE_BYTES
        ),
        num_workers=data_parallel_size,
    )
    sys.exit(run(batch_config, stack_config))


@app.command()
def replay(context: typer.Context, recording: opt.Recording, until: opt.Until = None) -> None:
    """Run the scheduler's decisions of a recording again, and show the first that differs."""
    _become("scheduler_svc.replay", settings_of(ReplayConfig, context.params))


@app.command()
@takes(POLICY)
def simulate(
    context: typer.Context,
    trace: opt.TraceOption = "azure-conv-excerpt",
    gpu: opt.GpuOption = "h200",
    model: opt.SimulatedModel = "llama-3-8b",
    tensor_parallel_size: opt.TensorParallelSize = 1,
    num_workers: opt.NumWorkers = 1,
    max_num_seqs: opt.MaxNumSeqs = simulation_config.DEFAULT_SIMULATED_MAX_NUM_SEQS,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = simulation_config.DEFAULT_SIMULATED_MAX_NUM_BATCHED_TOKENS,
    max_model_len: opt.SimulatedModelLen = None,
    block_size: opt.BlockSizeOption = opt.DEFAULT_BLOCK_SIZE,
    num_gpu_blocks_override: opt.NumBlocks = None,
    kv_cache_memory_bytes: opt.SimulatedKvMemory = None,
    gpu_memory_utilization: opt.MemoryUtilization = config.DEFAULT_MEMORY_UTILIZATION,
    kv_policy: opt.KvPolicyOption = KvPolicy.paged,
    allocator: opt.AllocatorOption = Allocator.first_fit,
    max_tokens: opt.MaxTokens = simulation_config.DEFAULT_MAX_TOKENS,
    hop_latency: opt.HopLatency = simulation_config.DEFAULT_HOP_LATENCY_S,
    num_requests: opt.NumRequests = None,
    request_rate: opt.RequestRate = None,
    time_scale: opt.TimeScale = None,
    length_scale: opt.LengthScale = 1.0,
    tenants: opt.Tenants = "",
    seed: opt.Seed = 0,
    plot: opt.PlotFile = None,
    json: opt.JsonFile = None,
) -> None:
    """Run a trace through the scheduler in virtual time, on GPUs that are not here."""
    _become("scheduler_svc.simulation", settings_of(SimulationConfig, context.params))


def _stack_config(params: Mapping[str, Any]) -> StackConfig:
    # The scheduler has no authentication, so it stays on this host whatever the gateway listens on.
    scheduler_config = settings_of(
        SchedulerConfig,
        params,
        host=config.DEFAULT_HOST,
        port=params["scheduler_port"],
        metrics_port=params["scheduler_metrics_port"],
    )
    return StackConfig(
        scheduler=scheduler_config,
        worker=settings_of(
            WorkerConfig,
            params,
            metrics_port=params["worker_metrics_port"],
            grammar_limits=limits_of(GrammarLimits, params),
        ),
        gateway=_gateway_config(params),
        num_workers=params["data_parallel_size"],
        num_gateways=params["api_server_count"],
    )


def _gateway_config(params: Mapping[str, Any]) -> GatewayConfig:
    return settings_of(
        GatewayConfig,
        params,
        served_model_names=_names(params),
        allowed_origins=tuple(params["allowed_origins"] or ()),
        limits=limits_of(RequestLimits, params),
        form_limits=limits_of(FormLimits, params),
        grammar_limits=limits_of(GrammarLimits, params),
    )


def _names(params: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(params["served_model_name"] or ()) or (model_name(params["model"]),)


def _become(module: str, settings: ServiceConfig) -> NoReturn:
    """Replaces this process: a service imports neither the CLI nor another service."""
    os.execve(sys.executable, [sys.executable, "-m", module, settings.to_json()], service_environment())
