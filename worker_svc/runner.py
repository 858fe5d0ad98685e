"""Runs the steps of a plan: slots and model in one object, driven by one thread."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidRequest
from pageloom.model_files import locate_model
from pageloom.plan import BatchPlan, CacheInfo, Failure, ModelInfo, StepResult
from pageloom_kernels import HiddenTaps
from worker_svc.batch_inputs import BatchInputs, build_batch_inputs
from worker_svc.checkpoint import Checkpoint
from worker_svc.device import dtype_name
from worker_svc.digest import model_digest
from worker_svc.drafting.drafter import Drafter, TargetStep
from worker_svc.drafting.open import open_drafter
from worker_svc.drafting.speculation import NO_DRAFTS_RUN, DraftReport, Speculation
from worker_svc.drafting.step_costs import measure_step_costs
from worker_svc.draw_rows import DrawRows, draw_rows
from worker_svc.grammar import NO_GRAMMARS, Grammars, open_grammars
from worker_svc.host import usable_cores
from worker_svc.kv_cache import fit_context
from worker_svc.loader import Progress, open_checkpoint
from worker_svc.model_part import ModelPart, load_part
from worker_svc.parallel.group import Group
from worker_svc.parallel.independence import is_independent
from worker_svc.pooled_rows import PooledRows, PooledSlots
from worker_svc.pooler import NO_EMBEDDINGS, Embeddings, Pooler
from worker_svc.pooling_config import choose_pooling
from worker_svc.prompt_rows import PromptRows, PromptScoring
from worker_svc.prompt_scores import NO_SCORES, PromptScores, score_prompts
from worker_svc.rehearsal import rehearse
from worker_svc.sampler import NO_DRAWS, NOT_FINITE, Draws, Sampler, most_likely_draws
from worker_svc.slots import Runs, SlotTable

log = structlog.get_logger()

_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BegunStep:
    """A plan that is applied, and what the model is to compute for it; no `inputs`: nothing."""

    plan: BatchPlan
    runs: Runs
    failures: dict[int, Failure]
    scored: PromptRows | None
    pooled: PooledRows | None
    inputs: BatchInputs | None


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
            open_grammars,
            files,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            num_threads=num_threads,
            cache_bytes=config.grammar_cache_bytes,
            limits=config.grammar_limits,
        )
        part = load_part(config, files, checkpoint, progress, group)
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
    drafter = open_drafter(config, part.draft, part.model, part.cache, part.device)
    return ModelRunner(config, info, part, grammars, drafter)


class ModelRunner:
    """A loaded model with its KV blocks and slots. One thread at a time may call it, and one more `prepare`."""

    def __init__(
        self,
        config: WorkerConfig,
        info: ModelInfo,
        part: ModelPart,
        grammars: Grammars | None,
        drafter: Drafter | None = None,
    ) -> None:
        self.kernels = part.kernels
        self.model_info = info
        self.cache_info: CacheInfo = part.cache.info
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_num_draft_tokens = 0 if drafter is None else config.num_speculative_tokens
        self.num_stages = config.pipeline_parallel_size
        self._drafter = drafter
        # From `warm_up` on, if there is a drafter.
        self._speculation: Speculation | None = None
        self._model = part.model
        self._kv = part.cache
        self._device = part.device
        self._grammars = grammars
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
        if self._drafter is not None:
            self._drafter.warm_up(num_tokens)
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
        if self._speculation is not None:
            runs = self._speculation.with_drafts(runs, self._slots, self._sampler)
        scored = self._prompt_scoring.rows(runs, self._slots)
        pooled = self._pooled_slots.rows(runs, self._slots)
        more_rows = [part.rows for part in (scored, pooled) if part is not None]
        inputs = build_batch_inputs(self._slots, runs, self._device, more_rows) if len(runs.slots) else None
        self._slots.begin(runs)
        return BegunStep(plan=plan, runs=runs, failures=failures, scored=scored, pooled=pooled, inputs=inputs)

    def _finish(self, begun: BegunStep, started_s: float) -> StepResult:
        draws, scores, embeddings, target_step = self._run(begun)
        self._slots.advance(begun.runs, draws.slots, draws.counts, draws.token_ids)
        drafts = self._learn(target_step, draws)
        failed_slots = (*scores.failed_slots, *embeddings.failed_slots)
        return StepResult(
            epoch=begun.plan.epoch,
            step=begun.plan.step,
            slots=tuple(draws.slots.tolist()),
            token_ids=tuple(draws.token_ids.tolist()),
            token_counts=tuple(draws.counts.tolist()) if drafts.num_drafts else (),
            draft_counts=tuple(draws.num_drafts.tolist()) if drafts.num_drafts else (),
            draft_limit=drafts.limit,
            logprobs=draws.logprobs,
            failures=begun.failures | draws.failures | dict.fromkeys(failed_slots, NOT_FINITE),
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

    def _run(self, begun: BegunStep) -> tuple[Draws, PromptScores, Embeddings, TargetStep | None]:
        runs, inputs = begun.runs, begun.inputs
        if inputs is None:
            return NO_DRAWS, NO_SCORES, NO_EMBEDDINGS, None
        taps = self._make_taps(len(inputs.token_ids))
        hidden = self._model.forward(inputs.token_ids, inputs.attention, self._kv.layers, inputs.output_rows, taps)
        rows = draw_rows(runs, self._slots)
        num_draw_rows = len(rows.row_slots)
        scored_end = num_draw_rows + (0 if begun.scored is None else len(begun.scored.rows))
        scores = self._score(hidden[num_draw_rows:scored_end], begun.scored)
        embeddings = self._pool(hidden[scored_end:], begun.pooled)
        step = TargetStep(runs=runs, inputs=inputs, tapped=None if taps is None else taps.states.flatten(1))
        return self._draw(hidden[:num_draw_rows], rows).without(scores.failed_slots), scores, embeddings, step

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


def _inside_vocabulary(checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(token_id for token_id in checkpoint.eos_token_ids if token_id < checkpoint.config.vocab_size)
