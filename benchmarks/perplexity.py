"""Do the kernels say what the model says? Perplexity of a text, by what computes it: `python -m benchmarks.perplexity`.

Defined as by llama.cpp's `llama-perplexity -f FILE -c CONTEXT`, so that the two can be compared on one model file:
the text is cut into chunks of CONTEXT tokens, and of each chunk the second half is predicted, token by token.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from pageloom.config import DEFAULT_BLOCK_SIZE, CpuKernels, Quantization, WorkerConfig
from pageloom.model_files import locate_model
from pageloom.tokenizer import load_tokenizer
from pageloom_kernels import AttentionBatch
from worker_svc.cpu_kernels import choose_kernels
from worker_svc.host import usable_cores
from worker_svc.kv_cache import KvCache, allocate_kv_cache
from worker_svc.loader import load_model, open_checkpoint
from worker_svc.models.model import Model
from worker_svc.quantization import kept_types

# --dtype, --cpu-kernels and --quantization of each row; the others are compared with the first.
PATHS = {
    "PyTorch, float32": ("float32", CpuKernels.torch, Quantization.none),
    "PyTorch, bfloat16": ("bfloat16", CpuKernels.torch, Quantization.none),
    "C++, bfloat16": ("bfloat16", CpuKernels.auto, Quantization.none),
    "C++, weights as in the file": ("bfloat16", CpuKernels.auto, Quantization.auto),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Of one path. `standard_error` is of the mean over tokens, as a part of the perplexity."""

    path: str
    perplexity: float
    standard_error: float


def main(
    text: Annotated[Path, typer.Argument(help="A text file in UTF-8.", exists=True, dir_okay=False)],
    model: Annotated[str, typer.Option(help="Folder or .gguf file. Default: the embedded model.")] = "",
    context: Annotated[int, typer.Option(help="Tokens of a chunk.", min=4)] = 512,
    chunks: Annotated[int | None, typer.Option(help="How many at most. Default: the whole text.", min=1)] = None,
    path: Annotated[list[str] | None, typer.Option(help=f"Which of: {'; '.join(PATHS)}. Default: all.")] = None,
) -> None:
    """Show the perplexity of a text, by the kernels and weights that compute it."""
    names = list(PATHS) if path is None else path
    for name in names:
        if name not in PATHS:
            raise typer.BadParameter(f"{name!r} is none of: {'; '.join(PATHS)}")
    token_ids = load_tokenizer(locate_model(model)).encode(text.read_text(), add_special_tokens=False)
    num_chunks = min(len(token_ids) // context, chunks or len(token_ids))
    if num_chunks == 0:
        raise typer.BadParameter(f"the text has {len(token_ids)} tokens, which is less than --context {context}")
    rows = torch.tensor(token_ids[: num_chunks * context]).view(num_chunks, context)
    figures = [_measure(name, model, rows) for name in names]
    _print_table(figures, f"{num_chunks} chunks of {context} tokens. {Machine.describe()}")


def _measure(path: str, model_name: str, rows: torch.Tensor) -> Figure:
    model, cache = _load(path, model_name, rows.shape[1])
    losses = torch.cat([_losses(model, cache, row) for row in rows])
    mean = losses.mean().item()
    standard_error = losses.std().item() / math.sqrt(len(losses))
    return Figure(path=path, perplexity=math.exp(mean), standard_error=standard_error)


def _load(path: str, model_name: str, context: int) -> tuple[Model, KvCache]:
    dtype, cpu_kernels, quantization = PATHS[path]
    config = WorkerConfig(
        model=model_name,
        device="cpu",
        dtype=dtype,
        cpu_kernels=cpu_kernels.value,
        quantization=quantization.value,
    )
    checkpoint = open_checkpoint(locate_model(config.model))
    device = torch.device("cpu")
    kernels = choose_kernels(config, checkpoint, device, usable_cores())
    model, _ = load_model(
        checkpoint,
        num_positions=context,
        dtype=kernels.dtype,
        device=device,
        cpu_pool=kernels.cpu_pool,
        ggml_types=kept_types(config, checkpoint, kernels.cpu_pool),
        progress=lambda _done, _total: None,
    )
    cache = allocate_kv_cache(
        checkpoint.config,
        num_blocks=-(-context // DEFAULT_BLOCK_SIZE),
        block_size=DEFAULT_BLOCK_SIZE,
        dtype=kernels.dtype,
        device=device,
    )
    return model, cache


@torch.inference_mode()
def _losses(model: Model, cache: KvCache, token_ids: torch.Tensor) -> torch.Tensor:
    """[context] -> negative log-likelihoods of the tokens of its second half, but for the first of them."""
    context = len(token_ids)
    positions = torch.arange(context)
    batch = AttentionBatch(
        block_tables=torch.arange(cache.info.num_blocks, dtype=torch.int32)[None],
        seq_lens=torch.tensor([context], dtype=torch.int32),
        query_start=torch.tensor([0, context], dtype=torch.int32),
        num_decodes=0,
        max_query_len=context,
        max_seq_len=context,
        positions=positions,
        slot_mapping=positions,
    )
    hidden = model.forward(token_ids, batch, cache.layers, torch.arange(context // 2, context - 1))
    log_probs = model.logits(hidden).float().log_softmax(dim=-1)
    return -log_probs.gather(1, token_ids[context // 2 + 1 :, None])[:, 0]


def _print_table(figures: list[Figure], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("kernels", "perplexity", "standard error", f"against {figures[0].path}"):
        table.add_column(heading, justify="left" if heading == "kernels" else "right")
    for figure in figures:
        against = figure.perplexity / figures[0].perplexity - 1
        table.add_row(figure.path, f"{figure.perplexity:.4f}", f"{figure.standard_error:.2%}", f"{against:+.3%}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
