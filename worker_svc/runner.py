"""Runs the steps of a plan: slots and model in one object, driven by one thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import structlog
import torch
from torch import Tensor

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, InvalidRequest
from pageloom.model_files import locate_model
from pageloom.plan import BatchPlan, CacheInfo, Failure, ModelInfo, StepResult
from pageloom_kernels import HiddenTaps
from worker_svc.batch_inputs import build_batch_inputs
from worker_svc.checkpoint import Checkpoint
from worker_svc.cpu_kernels import Kernels, choose_kernels
from worker_svc.device import dtype_name, resolve_device
from worker_svc.digest import model_digest
from worker_svc.drafting.draft_model import DraftModel, load_draft_model
from worker_svc.drafting.drafter import Drafter, TargetStep
from worker_svc.drafting.open import open_drafter
from worker_svc.drafting.speculation import NO_DRAFTS_RUN, DraftReport, Speculation
from worker_svc.drafting.step_costs import measure_step_costs
from worker_svc.draw_rows import DrawRows, draw_rows
from worker_svc.grammar import NO_GRAMMARS, Grammars, open_grammars
from worker_svc.host import usable_cores
from worker_svc.kv_cache import KvCache, allocate_kv_cache, block_bytes, count_blocks, fit_context
from worker_svc.loader import Progress, load_model, open_checkpoint
from worker_svc.models.model import Model
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


def load_runner(config: WorkerConfig, progress: Progress) -> ModelRunner:
    """Loads the model and allocates its KV memory; `progress` gets bytes read and bytes in all.

    Raises ModelLoadError or InvalidConfig.
    """
    num_threads = config.num_threads or usable_cores()
    torch.set_num_threads(num_threads)
    files = locate_model(config.model)
    checkpoint = open_checkpoint(files)
    pooling = choose_pooling(config.pooling, files)
    device = resolve_device(config.device)
    longest = _longest_context(checkpoint, config.max_model_len)
    kernels = choose_kernels(config, checkpoint, device, num_threads)
    ggml_types = kept_types(config, checkpoint, kernels.cpu_pool)
    name = f"{kernels.name}, weights quantized as in the file" if ggml_types else kernels.name
    log.info("the model runs", device=device.type, dtype=dtype_name(kernels.dtype), kernels=name)
    vocab_size, eos_token_ids = checkpoint.config.vocab_size, _inside_vocabulary(checkpoint)
    with ThreadPoolExecutor(1) as helper:
        opening = helper.submit(
            open_grammars,
            files,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            num_threads=num_threads,
            cache_bytes=config.grammar_cache_bytes,
            limits=config.grammar_limits,
        )
        model, weights_bytes = load_model(
            checkpoint,
            num_positions=longest,
            dtype=kernels.dtype,
            device=device,
            cpu_pool=kernels.cpu_pool,
            ggml_types=ggml_types,
            progress=progress,
        )
        grammars = opening.result()
    draft = load_draft_model(config, files, model, kernels, device)
    if kernels.cpu_pool is not None:
        # The library's threads have the cores. PyTorch's would keep one from them for a while after each operation.
        torch.set_num_threads(1)
    cache = _make_cache(config, model, draft, kernels, device)
    info = ModelInfo(
        name=files.name,
        digest=model_digest(checkpoint.files, kernels.dtype, is_quantized=bool(ggml_types)),
        architecture=checkpoint.architecture,
        vocab_size=vocab_size,
        max_model_len=fit_context(config.max_model_len, longest, cache.info.num_blocks, config.block_size),
        eos_token_ids=eos_token_ids,
        dtype=dtype_name(kernels.dtype),
        weights_bytes=weights_bytes + (0 if draft is None else draft.weights_bytes),
        hidden_size=checkpoint.config.hidden_size,
        pooling=pooling,
    )
    if info.max_model_len < longest:
        log.warning("the KV memory holds less than the model's context", max_model_len=info.max_model_len)
    drafter = open_drafter(config, draft, model, cache, device)
    return ModelRunner(config, info, model, cache, device, name, grammars, drafter)


class ModelRunner:
    """A loaded model with its KV blocks and slots. One thread at a time may call it, and one more `prepare`."""

    def __init__(
        self,
        config: WorkerConfig,
        info: ModelInfo,
        model: Model,
        cache: KvCache,
        device: torch.device,
        kernels: str,
        grammars: Grammars | None,
        drafter: Drafter | None = None,
    ) -> None:
        self.kernels = kernels
        self.model_info = info
        self.cache_info: CacheInfo = cache.info
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_num_draft_tokens = 0 if drafter is None else config.num_speculative_tokens
        self._drafter = drafter
        # From `warm_up` on, if there is a drafter.
        self._speculation: Speculation | None = None
        self._model = model
        self._kv = cache
        self._device = device
        self._grammars = grammars
        self._slots = SlotTable(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            block_size=cache.info.block_size,
            num_blocks=cache.info.num_blocks,
            vocab_size=info.vocab_size,
        )
        self._prompt_scoring = PromptScoring(config.max_num_seqs)
        self._pooled_slots = PooledSlots(config.max_num_seqs)
        self._pooler = Pooler()
        self._sampler = Sampler(
            max_num_seqs=config.max_num_seqs,
            vocab_size=info.vocab_size,
            eos_token_ids=info.eos_token_ids,
            device=device,
            grammars=grammars,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs the model once for each kind of step, so that no request pays for what a first run
        compiles. No block is written."""
        for num_tokens in (1, min(self.max_num_batched_tokens, _WARM_UP_TOKENS)):
            hidden = rehearse(self._model, self._kv.layers, num_tokens, 1, self._device)
            self._model.most_likely(hidden)
        if self._drafter is not None:
            self._speculation = Speculation(
                self._drafter,
                measure_step_costs(self._rehearse_draws, self.max_num_batched_tokens),
                max_num_seqs=self.max_num_seqs,
                max_num_draft_tokens=self.max_num_draft_tokens,
            )

    def prepare(self, grammar: str) -> str:
        """What is wrong with a grammar, "" if nothing is; one that is not needs no step to compile it. The one method
        for another thread, while steps run."""
        if self._grammars is None:
            return NO_GRAMMARS
        return self._grammars.prepare(grammar)

    @torch.inference_mode()
    def step(self, plan: BatchPlan) -> StepResult:
        """Applies the plan and runs it. Raises PlanError if it contradicts the slots; after that only
        a snapshot, or the first plan of another epoch, can be run."""
        started_s = time.perf_counter()
        self._bind_slots(plan)
        self._kv.used(self._slots.num_used_blocks)
        self._kv.copy(plan.copy_source_block_ids, plan.copy_target_block_ids)
        runs, failures = self._slots.select_runs(plan)
        if self._speculation is not None:
            runs = self._speculation.with_drafts(runs, self._slots, self._sampler)
        draws, scores, embeddings, target_step = self._run(runs)
        self._slots.advance(runs, draws.slots, draws.counts, draws.token_ids)
        drafts = self._learn(target_step, draws)
        failed_slots = (*scores.failed_slots, *embeddings.failed_slots)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            slots=tuple(draws.slots.tolist()),
            token_ids=tuple(draws.token_ids.tolist()),
            token_counts=tuple(draws.counts.tolist()) if drafts.num_drafts else (),
            draft_counts=tuple(draws.num_drafts.tolist()) if drafts.num_drafts else (),
            draft_limit=drafts.limit,
            logprobs=draws.logprobs,
            failures=failures | draws.failures | dict.fromkeys(failed_slots, NOT_FINITE),
            prompt_logprobs=scores.logprobs,
            embeddings=embeddings.vectors,
            duration_s=(duration_s := time.perf_counter() - started_s),
            undrafted_duration_s=duration_s * drafts.undrafted_part,
        )

    def _bind_slots(self, plan: BatchPlan) -> None:
        if self._speculation is not None:
            # What was drawn for them may serve to guess for others, so they are still there.
            self._speculation.release(self._slots.released(plan))
        admissions = self._slots.apply(plan)
        self._sampler.release(plan.released_slots)
        for admission in admissions:
            self._prompt_scoring.bind(admission)
            self._pooled_slots.bind(admission)
            self._pooler.bind(admission.slot)
            if self._speculation is not None:
                self._speculation.bind(admission)
            try:
                self._sampler.bind(admission)
            except InvalidRequest as error:
                self._slots.reject(admission.slot, Failure(error.message, error.param or ""))

    def _rehearse_draws(self, num_rows: int) -> None:
        hidden = rehearse(self._model, self._kv.layers, num_rows, num_rows, self._device)
        self._model.most_likely(hidden).cpu()

    def _learn(self, step: TargetStep | None, draws: Draws) -> DraftReport:
        if self._speculation is None or step is None:
            return NO_DRAFTS_RUN
        return self._speculation.observe(step, draws, self._slots)

    def _run(self, runs: Runs) -> tuple[Draws, PromptScores, Embeddings, TargetStep | None]:
        if len(runs.slots) == 0:
            return NO_DRAWS, NO_SCORES, NO_EMBEDDINGS, None
        scored = self._prompt_scoring.rows(runs, self._slots)
        pooled = self._pooled_slots.rows(runs, self._slots)
        draws, num_scored_rows = draw_rows(runs, self._slots), 0 if scored is None else len(scored.rows)
        more_rows = [part.rows for part in (scored, pooled) if part is not None]
        inputs = build_batch_inputs(self._slots, runs, self._device, more_rows)
        taps = self._make_taps(len(inputs.token_ids))
        hidden = self._model.forward(inputs.token_ids, inputs.attention, self._kv.layers, inputs.output_rows, taps)
        num_draw_rows = len(draws.row_slots)
        scored_end = num_draw_rows + num_scored_rows
        scores = self._score(hidden[num_draw_rows:scored_end], scored)
        embeddings = self._pool(hidden[scored_end:], pooled)
        step = TargetStep(runs=runs, inputs=inputs, tapped=None if taps is None else taps.states.flatten(1))
        return self._draw(hidden[:num_draw_rows], draws).without(scores.failed_slots), scores, embeddings, step

    def _make_taps(self, num_tokens: int) -> HiddenTaps | None:
        layers = () if self._speculation is None else self._speculation.tap_layers
        if not layers:
            return None
        shape = (num_tokens, len(layers), self._model.config.hidden_size)
        return HiddenTaps(layers=layers, states=torch.empty(shape, dtype=self._kv.blocks.dtype, device=self._device))

    def _score(self, hidden: Tensor, rows: PromptRows | None) -> PromptScores:
        """`hidden` [rows, hidden]."""
        if rows is None:
            return NO_SCORES
        return score_prompts(self._model.logits, hidden, rows, self.model_info.vocab_size)

    def _pool(self, hidden: Tensor, rows: PooledRows | None) -> Embeddings:
        """`hidden` [rows, hidden]."""
        return NO_EMBEDDINGS if rows is None else self._pooler.pool(hidden, rows)

    def _draw(self, hidden: Tensor, rows: DrawRows) -> Draws:
        """`hidden` [rows, hidden]."""
        if len(rows.slots) == 0:
            return NO_DRAWS
        if self._sampler.takes_most_likely(rows):
            return most_likely_draws(rows, self._model.most_likely(hidden))
        return self._sampler.sample(self._model.logits(hidden), rows)


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
    config: WorkerConfig, model: Model, draft: DraftModel | None, kernels: Kernels, device: torch.device
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
        if draft is not None:
            free_gpu_bytes -= draft.step_bytes(config.max_num_batched_tokens, kernels.dtype)
    draft_kv = None if draft is None else draft.kv
    with_kv = (model.config,) if draft_kv is None else (model.config, draft_kv)
    num_blocks = count_blocks(config, block_bytes(with_kv, config.block_size, kernels.dtype), free_gpu_bytes)
    return allocate_kv_cache(
        model.config,
        num_blocks=num_blocks,
        block_size=config.block_size,
        dtype=kernels.dtype,
        device=device,
        draft=draft_kv,
        cpu_library=None if kernels.cpu_pool is None else kernels.cpu_pool.library,
    )
