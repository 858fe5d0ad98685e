"""What `pageloom serve` shows and does: progress while weights load, a table when ready, an orderly end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.table import Table

from pageloom.local_stack import LocalStack
from pageloom.stack_config import StackConfig
from pageloom.status import GatewayReady, WorkerReady
from pageloom.terminal import LoadingBar, StopSignals

_MIB = 1024 * 1024
_EXAMPLE_QUESTION = "What is the capital of France?"


def serve_stack(config: StackConfig) -> int:
    """Runs the stack until a signal or a service's end; returns the exit code.

    Raises StartupError if a service cannot start.
    """
    return asyncio.run(_serve(config))


async def _serve(config: StackConfig) -> int:
    console = Console(stderr=True)
    signals = StopSignals()
    with LoadingBar(console) as bar:
        stack = LocalStack(config, bar.update)
        signals.on_second = stack.kill
        async with stack:
            if await signals.come_before(stack.wait_until_ready()):
                return 130
            bar.finish()
            _show_ready(console, config, stack)
            ending = asyncio.ensure_future(stack.wait_for_exit(partial(_show_lost_worker, console)))
            if await signals.come_before(ending):
                console.print("Draining: running requests may finish. Ctrl-C again stops at once.")
                return 0
            name, code = ending.result()
            console.print(f"[red]The {name} ended by itself with exit code {code}. Stopping the others.")
            # Without it no request can finish, so there is nothing to wait for.
            stack.drain = False
            return 1


def _show_lost_worker(console: Console, name: str, code: int) -> None:
    console.print(f"[red]The {name} ended with exit code {code}. The others go on without it.")


def _show_ready(console: Console, config: StackConfig, stack: LocalStack) -> None:
    assert config.gateway is not None
    gateway = stack.ready(GatewayReady)
    model_name, url = config.gateway.served_model_names[0], gateway.url
    table = Table(title=f"Pageloom serves {model_name}", title_justify="left", show_header=False)
    for row in (
        *_model_rows(stack.ready(WorkerReady), config),
        ("Sampling defaults", gateway.sampling_defaults),
        *_url_rows(url, stack.scheduler_address, config),
    ):
        table.add_row(*row)
    console.print(table)
    body = {"model": model_name, "messages": [{"role": "user", "content": _EXAMPLE_QUESTION}], "temperature": 0}
    console.print("Ask it something:\n")
    # Not wrapped and not marked up, so that it can be pasted.
    command = f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    console.print(command, soft_wrap=True, markup=False, highlight=False)
    console.print("\nCtrl-C drains and stops.")


def _model_rows(worker: WorkerReady, config: StackConfig) -> Iterator[tuple[str, str]]:
    num_tokens = worker.num_blocks * worker.block_size
    yield "Weights", f"{worker.weights_bytes / _MIB:,.0f} MiB, {worker.dtype}"
    yield "Kernels", worker.kernels
    if config.num_workers > 1:
        yield "Workers", f"{config.num_workers}, each with what follows"
    yield (
        "KV memory",
        f"{worker.kv_bytes / _MIB:,.0f} MiB: {worker.num_blocks:,} blocks of {worker.block_size} tokens, "
        f"{num_tokens:,} tokens",
    )
    yield (
        "Requests",
        f"{num_tokens / worker.max_model_len:.1f} at the full context of {worker.max_model_len:,} tokens; "
        f"at most {config.scheduler.max_num_seqs} in a step",
    )


def _url_rows(url: str, scheduler_address: str, config: StackConfig) -> Iterator[tuple[str, str]]:
    yield "OpenAI API", f"{url}/v1  {url}/docs"
    yield "Health", f"{url}/health  {url}/ready"
    yield "Metrics", f"{url}/metrics"
    for name, service in (("Scheduler metrics", config.scheduler), ("Worker metrics", config.worker)):
        if service.metrics_port is not None:
            yield name, f"http://{service.metrics_host}:{service.metrics_port}/metrics"
    yield "gRPC Engine", scheduler_address
