"""A runner without a model: keeps the plan's semantics, draws arbitrary tokens, takes the time that a roofline says.

For measuring everything but the model, and for trying a deployment on hardware that is not there. It loads neither
torch nor a file.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time

import numpy as np

from pageloom.config import PoolingChoice, WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.outputs import PromptLogprobs, TokenLogprobs
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult
from pageloom.policies import Pooling
from pageloom.roofline import StepShape, StepTimer, parse_profile, simulated_cache
from pageloom.simulated_tokens import NUM_RESERVED_TOKENS, SIMULATED_EOS_TOKEN_ID, choice_key, draw_tokens
from worker_svc.pooled_rows import PooledRows, PooledSlots
from worker_svc.prompt_rows import PromptRows, PromptScoring
from worker_svc.slots import Runs, SlotTable


def simulated_runner(config: WorkerConfig) -> SimulatedRunner:
    """A runner for `config.simulate`. Raises InvalidConfig."""
    assert config.simulate is not None
    timer = parse_profile(config.simulate)
    cache = simulated_cache(
        timer,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
    )
    num_kv_tokens = cache.num_blocks * cache.block_size
    model = timer.model
    if (config.max_model_len or 0) > model.max_model_len:
        raise InvalidConfig(
            f"--max-model-len {config.max_model_len} is more than the {model.max_model_len} of {model.name}"
        )
    info = ModelInfo(
        name=model.name,
        # Never that of real weights: what they compute and what this draws must not mix behind one scheduler.
        digest=hashlib.sha256(f"simulated {model.name}".encode()).hexdigest(),
        architecture="simulated",
        vocab_size=model.vocab_size,
        max_model_len=min(config.max_model_len or model.max_model_len, num_kv_tokens),
        eos_token_ids=(SIMULATED_EOS_TOKEN_ID,),
        dtype="bfloat16",
        weights_bytes=model.weights_bytes,
        hidden_size=model.hidden_size,
        pooling=Pooling.last if config.pooling == PoolingChoice.auto else Pooling(config.pooling),
    )
    return SimulatedRunner(
        timer, info, cache, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
    )


class SimulatedRunner:
    """Runs each plan by waiting. Contradictory plans raise PlanError, as they do from a model's runner."""

    def __init__(
        self, timer: StepTimer, info: ModelInfo, cache: CacheInfo, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.model_info = info
        self.cache_info = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_draft_tokens = 0
        self.num_stages = 1
        self._timer = timer
        self._keys = np.zeros(max_num_seqs, np.uint64)
        # As many as each slot's request asked for; None: it asked for none at all.
        self._num_logprobs: list[int | None] = [None] * max_num_seqs
        self._prompt_scoring = PromptScoring(max_num_seqs)
        self._pooled_slots = PooledSlots(max_num_seqs)
        self._slots = SlotTable(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=info.max_model_len,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            vocab_size=info.vocab_size,
        )
        self._overdue_s = 0.0

    def announce(self, plan: BatchPlan) -> bool:
        raise AssertionError("there is one stage")

    def prepare(self, grammar: str) -> str:
        """Nothing is followed here, so any will do."""
        return ""

    def step(self, plan: BatchPlan) -> StepResult:
        """Raises PlanError; after that only a snapshot, or the first plan of another epoch, can be run."""
        started_s = time.perf_counter()
        for admission in self._slots.apply(plan):
            assert admission.sampling.seed is not None
            self._keys[admission.slot] = choice_key(admission.sampling.seed, admission.choice_index)
            self._num_logprobs[admission.slot] = admission.sampling.logprobs
            self._prompt_scoring.bind(admission)
            self._pooled_slots.bind(admission)
        runs, failures = self._slots.select_runs(plan)
        prompt_rows = self._prompt_scoring.rows(runs, self._slots)
        pooled = self._pooled_slots.rows(runs, self._slots)
        num_scored_rows = 0 if prompt_rows is None else len(prompt_rows.rows)
        drawn = runs.draw_slots
        token_ids = draw_tokens(self._keys[drawn], self._slots.num_tokens[drawn], self.model_info.vocab_size)
        self._slots.advance(runs, drawn, np.ones_like(drawn), token_ids)
        self._wait_until(started_s, self._timer.step_time_s(_shape(runs, num_scored_rows)))
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            slots=tuple(drawn.tolist()),
            token_ids=tuple(token_ids.tolist()),
            logprobs=self._logprobs(drawn.tolist(), token_ids.tolist()),
            failures=failures,
            prompt_logprobs={} if prompt_rows is None else self._prompt_logprobs(prompt_rows),
            embeddings={} if pooled is None else self._embeddings(pooled),
            duration_s=time.perf_counter() - started_s,
        )

    def _logprobs(self, slots: list[int], token_ids: list[int]) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Of a model that finds each token of its vocabulary equally likely."""
        logprob = -math.log(self.model_info.vocab_size)
        reports: dict[int, tuple[TokenLogprobs, ...]] = {}
        for slot, token_id in zip(slots, token_ids, strict=True):
            if (count := self._num_logprobs[slot]) is not None:
                reports[slot] = (TokenLogprobs(logprob, _top_token_ids(token_id, count), (logprob,) * count),)
        return reports

    def _prompt_logprobs(self, rows: PromptRows) -> dict[int, PromptLogprobs]:
        logprob = -math.log(self.model_info.vocab_size)
        reports: dict[int, PromptLogprobs] = {}
        for slot, first_index, num_top, part in rows.parts():
            token_ids = rows.token_ids[part].tolist()
            reports[slot] = PromptLogprobs(
                first_index=first_index,
                logprobs=(logprob,) * len(token_ids),
                ranks=(1,) * len(token_ids),
                top_token_ids=tuple(top_id for token_id in token_ids for top_id in _top_token_ids(token_id, num_top)),
                top_logprobs=(logprob,) * (num_top * len(token_ids)),
            )
        return reports

    def _embeddings(self, pooled: PooledRows) -> dict[int, bytes]:
        """Arbitrary vectors, decided by the tokens of each prompt alone."""
        embeddings: dict[int, bytes] = {}
        for slot in pooled.slots[pooled.ends].tolist():
            token_ids = self._slots.token_ids[slot, : self._slots.num_tokens[slot]]
            key = int.from_bytes(hashlib.sha256(token_ids.astype("<i4").tobytes()).digest()[:8])
            words = np.random.Philox(key=key).random_raw(self.model_info.hidden_size)
            embeddings[slot] = (words.astype(np.int64) / 2**63).astype("<f4").tobytes()
        return embeddings

    def _wait_until(self, started_s: float, duration_s: float) -> None:
        """Sleeps until `duration_s` after the start. A sleep ends late, by the kernel's timer slack or for want of a
        core; the next steps are shortened by that much, so that the average is right."""
        wake_s = started_s + duration_s - self._overdue_s
        time.sleep(max(0.0, wake_s - time.perf_counter()))
        # More than one step late is a stall, which a real device would not make up for either.
        self._overdue_s = min(max(0.0, time.perf_counter() - wake_s), duration_s)


def _top_token_ids(token_id: int, count: int) -> tuple[int, ...]:
    """All are equally likely, so the token itself may be the first."""
    others = (other for other in range(NUM_RESERVED_TOKENS) if other != token_id)
    return (token_id, *itertools.islice(others, count))[:count]


def _shape(runs: Runs, num_scored_rows: int) -> StepShape:
    ends = runs.starts + runs.lens
    num_decodes = int(np.searchsorted(runs.lens, 1, side="right"))
    lens, starts = runs.lens[num_decodes:], runs.starts[num_decodes:]
    return StepShape(
        num_tokens=int(runs.lens.sum()),
        # A row that is scored goes through the head like one that draws.
        num_draws=int(np.count_nonzero(runs.draws)) + num_scored_rows,
        decode_kv_tokens=int(ends[:num_decodes].sum()),
        prefill_kv_tokens=int(ends[num_decodes:].sum()),
        prefill_pairs=int((lens * starts + lens * (lens + 1) // 2).sum()),
    )
