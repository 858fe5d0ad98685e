"""Runs the steps of a plan: slots and model in one object, driven by one thread."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, InvalidRequest
from pageloom.model_files import locate_model
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult
from worker_svc.batch_inputs import BatchInputs, build_batch_inputs
from worker_svc.checkpoint import Checkpoint
from worker_svc.cpu_kernels import Kernels, choose_kernels
from worker_svc.device import dtype_name, resolve_device
from worker_svc.digest import model_digest
from worker_svc.grammar import Grammars, open_grammars
from worker_svc.host import usable_cores
from worker_svc.kv_cache import KvCache, allocate_kv_cache, block_bytes, count_blocks, fit_context
from worker_svc.loader import Progress, load_model, open_checkpoint
from worker_svc.models.model import Model
from worker_svc.parallel.group import Group
from worker_svc.parallel.independence import is_independent
from worker_svc.parallel.layout import Layout, check_layout
from worker_svc.parallel.leader import LeaderModel
from worker_svc.parallel.ranks import ALONE, RankGroup
from worker_svc.parallel.sharded_weights import shard_checkpoint
from worker_svc.pooled_rows import PooledRows, PooledSlots
from worker_svc.pooler import NO_EMBEDDINGS, Embeddings, Pooler
from worker_svc.pooling_config import choose_pooling
from worker_svc.prompt_rows import PromptRows, PromptScoring
from worker_svc.prompt_scores import NO_SCORES, PromptScores, score_prompts
from worker_svc.quantization import kept_types
from worker_svc.rehearsal import measure_free_gpu_bytes, rehearse
from worker_svc.sampler import NO_DRAWS, NOT_FINITE, Draws, Sampler, most_likely_draws
from worker_svc.slots import Runs, SlotTable

log = structlog.get_logger()

_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BegunStep:
    """A plan that is applied, and what the model is to compute for it; no `inputs`: nothing."""

    plan: BatchPlan
    runs: Runs
    failures: dict[int, str]
    scored: PromptRows | None
    pooled: PooledRows | None
    inputs: BatchInputs | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelPart:
    """What one rank holds: all of the model if it is alone. At rank 0 of several, `model` and `cache` lead the others'.
    `weights_bytes` is of all ranks together, `kernels` for people, `longest` the context that the model is prepared
    for."""

    model: Model
    # `model`, where it leads others.
    leader: LeaderModel | None
    cache: KvCache
    weights_bytes: int
    device: torch.device
    dtype: torch.dtype
    is_quantized: bool
    kernels: str
    longest: int


def load_part(config: WorkerConfig, checkpoint: Checkpoint, progress: Progress, group: Group | None) -> ModelPart:
    """Loads this rank's part of the model and allocates its KV memory. Raises ModelLoadError or InvalidConfig."""
    num_local_ranks = 1 if group is None else group.place.num_local_ranks
    num_threads = config.num_threads or max(1, usable_cores() // num_local_ranks)
    torch.set_num_threads(num_threads)
    device = resolve_device(config.device, 0 if group is None else group.place.local_rank)
    longest = _longest_context(checkpoint, config.max_model_len)
    layout = Layout() if group is None else group.layout
    check_layout(layout, checkpoint.config)
    kernels = choose_kernels(config, checkpoint, device, num_threads, layout.num_ranks)
    ggml_types = kept_types(config, checkpoint, kernels.cpu_pool)
    name = f"{kernels.name}, weights quantized as in the file" if ggml_types else kernels.name
    log.info("the model runs", device=device.type, dtype=dtype_name(kernels.dtype), kernels=name)
    ranks = None if group is None else group.ranks(checkpoint.config.vocab_size)
    model, weights_bytes = load_model(
        shard_checkpoint(checkpoint, layout),
        num_positions=longest,
        dtype=kernels.dtype,
        device=device,
        cpu_pool=kernels.cpu_pool,
        ggml_types=ggml_types,
        progress=progress,
        ranks=ranks or ALONE,
    )
    if kernels.cpu_pool is not None:
        # The library's threads have the cores. PyTorch's would keep one from them for a while after each operation.
        torch.set_num_threads(1)
    cache = _make_cache(config, model, kernels, device, num_local_ranks, ranks)
    leader: LeaderModel | None = None
    if group is not None and ranks is not None:
        log.info("this rank's part", rank=layout.rank, stage=layout.stage, weights_bytes=weights_bytes)
        weights_bytes = sum(ranks.numbers(weights_bytes))
        if group.is_leader:
            leader, cache = group.lead(model, cache, ranks)
    return ModelPart(
        model=leader or model,
        leader=leader,
        cache=cache,
        weights_bytes=weights_bytes,
        device=device,
        dtype=kernels.dtype,
        is_quantized=bool(ggml_types),
        kernels=name,
        longest=longest,
    )


def load_runner(config: WorkerConfig, progress: Progress, group: Group | None = None) -> ModelRunner:
    """Loads the model and allocates its KV memory; `progress` gets bytes read and bytes in all. In a `group` it is
    rank 0 that does this.

    Raises ModelLoadError or InvalidConfig.
    """
    files = locate_model(config.model)
    checkpoint = open_checkpoint(files)
    pooling = choose_pooling(config.pooling, files)
    num_threads = config.num_threads or usable_cores()
    vocab_size, eos_token_ids = checkpoint.config.vocab_size, _inside_vocabulary(checkpoint)
    with ThreadPoolExecutor(1) as helper:
        opening = helper.submit(
            open_grammars, files, vocab_size=vocab_size, eos_token_ids=eos_token_ids, num_threads=num_threads
        )
        part = load_part(config, checkpoint, progress, group)
        grammars = opening.result()
    info = ModelInfo(
        name=files.name,
        digest=model_digest(checkpoint.files, part.dtype, is_quantized=part.is_quantized),
        architecture=checkpoint.architecture,
        vocab_size=vocab_size,
        max_model_len=fit_context(config.max_model_len, part.longest, part.cache.info.num_blocks, config.block_size),
        eos_token_ids=eos_token_ids,
        dtype=dtype_name(part.dtype),
        weights_bytes=part.weights_bytes,
        hidden_size=checkpoint.config.hidden_size,
        pooling=pooling,
    )
    if info.max_model_len < part.longest:
        log.warning("the KV memory holds less than the model's context", max_model_len=info.max_model_len)
    return ModelRunner(config, info, part, grammars)


class ModelRunner:
    """A loaded model with its KV blocks and slots. One thread at a time may call it."""

    def __init__(
        self,
        config: WorkerConfig,
        info: ModelInfo,
        part: ModelPart,
        grammars: Grammars | None,
    ) -> None:
        self.kernels = part.kernels
        self.model_info = info
        self.cache_info: CacheInfo = part.cache.info
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.num_stages = config.pipeline_parallel_size
        self._model = part.model
        self._kv = part.cache
        self._device = part.device
        self._leader = part.leader
        # Announced steps, in the order in which they come.
        self._begun: deque[BegunStep] = deque()
        self._slots = SlotTable(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            block_size=part.cache.info.block_size,
            num_blocks=part.cache.info.num_blocks,
            vocab_size=info.vocab_size,
        )
        self._prompt_scoring = PromptScoring(config.max_num_seqs)
        self._pooled_slots = PooledSlots(config.max_num_seqs)
        self._pooler = Pooler()
        self._sampler = Sampler(
            max_num_seqs=config.max_num_seqs,
            vocab_size=info.vocab_size,
            eos_token_ids=info.eos_token_ids,
            device=part.device,
            grammars=grammars,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs the model once for each kind of step, so that no request pays for what a first run
        compiles. No block is written."""
        for num_tokens in (1, min(self.max_num_batched_tokens, _WARM_UP_TOKENS)):
            hidden = rehearse(self._model, self._kv.layers, num_tokens, 1, self._device)
            self._model.most_likely(hidden)

    @torch.inference_mode()
    def announce(self, plan: BatchPlan) -> bool:
        """Begins a plan that `step` gets later, after those before it; whether that is possible yet. It is of use with
        several stages. Raises PlanError as `step` does."""
        if not is_independent(plan, [begun.runs for begun in self._begun]):
            return False
        begun = self._begin(plan)
        if self._leader is not None and begun.inputs is not None:
            self._leader.announce(begun.inputs)
        self._begun.append(begun)
        return True

    @torch.inference_mode()
    def step(self, plan: BatchPlan) -> StepResult:
        """Applies the plan and runs it. Raises PlanError if it contradicts the slots; after that only
        a snapshot, or the first plan of another epoch, can be run."""
        while self._begun and self._begun[0].plan is not plan:
            # Of an attachment that has ended; other ranks run it already.
            self._finish(self._begun.popleft(), time.perf_counter())
        started_s = time.perf_counter()
        return self._finish(self._begun.popleft() if self._begun else self._begin(plan), started_s)

    def _begin(self, plan: BatchPlan) -> BegunStep:
        self._bind_slots(plan)
        self._kv.used(self._slots.num_used_blocks)
        self._kv.copy(plan.copy_source_block_ids, plan.copy_target_block_ids)
        runs, failures = self._slots.select_runs(plan)
        scored = self._prompt_scoring.rows(runs, self._slots)
        pooled = self._pooled_slots.rows(runs, self._slots)
        more_rows = [part.rows for part in (scored, pooled) if part is not None]
        inputs = build_batch_inputs(self._slots, runs, self._device, more_rows) if len(runs.slots) else None
        self._slots.begin(runs)
        return BegunStep(plan=plan, runs=runs, failures=failures, scored=scored, pooled=pooled, inputs=inputs)

    def _finish(self, begun: BegunStep, started_s: float) -> StepResult:
        draws, scores, embeddings = self._run(begun)
        self._slots.advance(begun.runs, draws.slots, draws.token_ids)
        failed_slots = (*scores.failed_slots, *embeddings.failed_slots)
        return StepResult(
            epoch=begun.plan.epoch,
            step=begun.plan.step,
            slots=tuple(draws.slots.tolist()),
            token_ids=tuple(draws.token_ids.tolist()),
            logprobs=draws.logprobs,
            failures=begun.failures | draws.failures | dict.fromkeys(failed_slots, NOT_FINITE),
            prompt_logprobs=scores.logprobs,
            embeddings=embeddings.vectors,
            duration_s=time.perf_counter() - started_s,
        )

    def _bind_slots(self, plan: BatchPlan) -> None:
        admissions = self._slots.apply(plan)
        self._sampler.release(plan.released_slots)
        for admission in admissions:
            self._prompt_scoring.bind(admission)
            self._pooled_slots.bind(admission)
            self._pooler.bind(admission.slot)
            try:
                self._sampler.bind(admission)
            except InvalidRequest as error:
                self._slots.reject(admission.slot, error.message)

    def _run(self, begun: BegunStep) -> tuple[Draws, PromptScores, Embeddings]:
        inputs, slots = begun.inputs, begun.runs.draw_slots
        if inputs is None:
            return NO_DRAWS, NO_SCORES, NO_EMBEDDINGS
        hidden = self._model.forward(inputs.token_ids, inputs.attention, self._kv.layers, inputs.output_rows)
        scored_end = len(slots) + (0 if begun.scored is None else len(begun.scored.rows))
        scores = self._score(hidden[len(slots) : scored_end], begun.scored)
        embeddings = self._pool(hidden[scored_end:], begun.pooled)
        return self._draw(hidden[: len(slots)], slots).without(scores.failed_slots), scores, embeddings

    def _score(self, hidden: Tensor, rows: PromptRows | None) -> PromptScores:
        """`hidden` [rows, hidden]."""
        if rows is None:
            return NO_SCORES
        return score_prompts(self._model.logits, hidden, rows, self.model_info.vocab_size)

    def _pool(self, hidden: Tensor, rows: PooledRows | None) -> Embeddings:
        """`hidden` [rows, hidden]."""
        return NO_EMBEDDINGS if rows is None else self._pooler.pool(hidden, rows)

    def _draw(self, hidden: Tensor, slots: NDArray[np.int64]) -> Draws:
        """`hidden` [slots, hidden]."""
        if len(slots) == 0:
            return NO_DRAWS
        positions = self._slots.num_tokens[slots]
        num_output_tokens = positions - self._slots.num_prompt_tokens[slots]
        if self._sampler.takes_most_likely(slots, num_output_tokens):
            return most_likely_draws(slots, self._model.most_likely(hidden))
        return self._sampler.sample(self._model.logits(hidden), slots, positions, num_output_tokens)


def _longest_context(checkpoint: Checkpoint, requested: int | None) -> int:
    """The context length to prepare for. Raises InvalidConfig if the model cannot have it."""
    longest = checkpoint.config.max_position_embeddings
    if requested is not None and requested > longest:
        raise InvalidConfig(f"--max-model-len {requested} is more than the model's {longest} positions")
    context = requested or longest
    window = checkpoint.sliding_window
    if window is not None and context > window:
        raise InvalidConfig(
            f"the model attends to a sliding window of {window} tokens, which is not supported beyond that length; "
            f"use --max-model-len {window} or less"
        )
    return context


def _inside_vocabulary(checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(token_id for token_id in checkpoint.eos_token_ids if token_id < checkpoint.config.vocab_size)


def _make_cache(
    config: WorkerConfig,
    model: Model,
    kernels: Kernels,
    device: torch.device,
    num_local_ranks: int,
    ranks: RankGroup | None,
) -> KvCache:
    free_gpu_bytes = None
    if device.type == "cuda":
        free_gpu_bytes = measure_free_gpu_bytes(
            model,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            block_size=config.block_size,
            dtype=kernels.dtype,
            device=device,
        )
    bytes_per_block = block_bytes(model.config, config.block_size, kernels.dtype)
    num_blocks = count_blocks(config, bytes_per_block, free_gpu_bytes, num_local_ranks=num_local_ranks)
    if ranks is not None:
        # A block is one at all of them.
        num_blocks = min(ranks.numbers(num_blocks))
    return allocate_kv_cache(
        model.config,
        num_blocks=num_blocks,
        block_size=config.block_size,
        dtype=kernels.dtype,
        device=device,
        cpu_library=None if kernels.cpu_pool is None else kernels.cpu_pool.library,
    )
