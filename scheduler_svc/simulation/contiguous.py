"""How did engines serve before paging? Iteration-level batching with one contiguous reservation for each sequence.

As in Orca (Yu et al., OSDI'22), newcomers join and finished ones leave at every step, first come first served, and
one that finds no room blocks those behind it. Prompts are taken in chunks like the core's, so that only memory differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from pageloom.errors import ContextLengthExceeded
from pageloom.outputs import ChoiceFinished, FinishReason
from pageloom.plan import Admission, BatchPlan, CacheInfo, StepResult
from pageloom.requests import GenerateRequest
from pageloom.simulated_tokens import SIMULATED_EOS_TOKEN_ID
from scheduler_svc.core.emission import ChoiceFacts, Committed, Ending, NewTokens, Stats, StepFacts, WorkerStats
from scheduler_svc.simulation.address_space import AddressSpace, Region

Reserve = Callable[[GenerateRequest], int]


@dataclass(slots=True, kw_only=True)
class _Sequence:
    key: int
    request: GenerateRequest
    length: int  # to reserve
    arrived_at: float
    region: Region | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    num_computed_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def decodes(self) -> bool:
        return self.num_computed_tokens >= self.num_prompt_tokens


class ContiguousScheduler:
    """Stands in for the core in a simulation: the same calls, plans and results, one worker, one step in flight.

    Its blocks are single tokens, so that its plans show what a sequence holds. `reserve` says how much a request needs.
    """

    def __init__(
        self,
        worker_id: str,
        memory: AddressSpace,
        reserve: Reserve,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        self._worker_id = worker_id
        self._memory = memory
        self._cache = CacheInfo(block_size=1, num_blocks=memory.num_free, kv_bytes=0)
        self._reserve = reserve
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._waiting: deque[_Sequence] = deque()
        self._bound: dict[int, _Sequence] = {}
        self._free_slots = list(range(max_num_seqs))[::-1]
        self._released_slots: list[int] = []
        self._in_flight: tuple[BatchPlan, StepFacts] | None = None
        self._num_keys = 0
        self._step = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished = dict.fromkeys(FinishReason, 0)

    def submit(self, request: GenerateRequest, now: float) -> tuple[int, ...]:
        """Raises ContextLengthExceeded if it can never fit."""
        length = self._reserve(request)
        assert request.sampling.max_tokens is not None
        num_most_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        if num_most_tokens > self._max_model_len or length > self._memory.longest:
            raise ContextLengthExceeded(f"{num_most_tokens} tokens are more than fit")
        key = self._num_keys
        self._num_keys += 1
        self._waiting.append(_Sequence(key=key, request=request, length=length, arrived_at=now))
        return (key,)

    def last_step_facts(self, worker_id: str) -> StepFacts | None:
        return None if self._in_flight is None else self._in_flight[1]

    def num_fragmented_tokens(self) -> int:
        """Free memory that would hold the head of the queue if it were in one piece."""
        if not self._waiting or not self._free_slots or self._memory.num_free < self._waiting[0].length:
            return 0
        region = self._memory.allocate(self._waiting[0].length)
        if region is None:
            return self._memory.num_free
        self._memory.free(region)
        return 0

    def plan(self, worker_id: str, now: float) -> BatchPlan | None:
        if self._in_flight is not None:
            return None
        num_decodes = sum(sequence.decodes for sequence in self._bound.values())
        chunks, budget = self._continue_chunks(self._max_num_batched_tokens - num_decodes)
        admitted = self._admit(budget, chunks, now)
        if not num_decodes and not chunks:
            return None
        self._step += 1
        plan = BatchPlan(
            epoch=1,
            step=self._step,
            snapshot=self._step == 1,
            released_slots=tuple(self._released_slots),
            admissions=tuple([_admission(slot, self._bound[slot]) for slot in admitted]),
            chunk_slots=tuple(chunks),
            chunk_lens=tuple(chunks.values()),
        )
        self._released_slots.clear()
        facts = StepFacts(
            num_seqs=num_decodes + len(chunks),
            num_tokens=num_decodes + sum(chunks.values()),
            num_decode_seqs=num_decodes,
            num_admitted=len(admitted),
            num_preempted=0,
        )
        self._in_flight = plan, facts
        return plan

    def commit(self, worker_id: str, result: StepResult, now: float) -> Committed:
        assert self._in_flight is not None
        plan, facts = self._in_flight
        self._in_flight = None
        for slot, length in zip(plan.chunk_slots, plan.chunk_lens, strict=True):
            self._bound[slot].num_computed_tokens += length
        sequences = [self._bound[slot] for slot in result.slots]
        first_indexes = [sequence.num_output_tokens for sequence in sequences]
        endings: list[Ending] = []
        for slot, sequence, token_id in zip(result.slots, sequences, result.token_ids, strict=True):
            sequence.num_output_tokens += 1
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            if token_id == SIMULATED_EOS_TOKEN_ID:
                endings.append(self._finish(slot, FinishReason.STOP))
            elif sequence.num_output_tokens == sequence.request.sampling.max_tokens:
                endings.append(self._finish(slot, FinishReason.LENGTH))
        self._num_generation_tokens += len(sequences)
        tokens = NewTokens(
            keys=np.array([sequence.key for sequence in sequences], np.int64),
            indexes=np.array(first_indexes, np.int64),
            token_ids=np.array(result.token_ids, np.int64),
            logprobs=[],
        )
        return Committed(tokens, endings, facts)

    def stats(self) -> Stats:
        worker = WorkerStats(
            worker_id=self._worker_id,
            epoch=1,
            cache=self._cache,
            num_running=len(self._bound),
            num_free_blocks=self._memory.num_free,
            num_cached_blocks=0,
            draining=False,
        )
        finished: Mapping[FinishReason, int] = MappingProxyType(dict(self._num_finished))
        return Stats(
            num_running=len(self._bound),
            num_waiting=len(self._waiting),
            workers=(worker,),
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            prefix_cache_queried_tokens=0,
            prefix_cache_hit_tokens=0,
            num_preemptions=0,
            num_lost_workers=0,
            num_finished=finished,
        )

    def _continue_chunks(self, budget: int) -> tuple[dict[int, int], int]:
        """Chunk length by slot, and what they leave of the budget."""
        chunks: dict[int, int] = {}
        for slot, sequence in self._bound.items():
            if budget and not sequence.decodes:
                chunks[slot] = min(budget, sequence.num_prompt_tokens - sequence.num_computed_tokens)
                budget -= chunks[slot]
        return chunks, budget

    def _admit(self, budget: int, chunks: dict[int, int], now: float) -> list[int]:
        """Adds the newcomers' chunks to `chunks`; returns their slots."""
        admitted: list[int] = []
        while budget and self._waiting and self._free_slots:
            sequence = self._waiting[0]
            sequence.region = self._memory.allocate(sequence.length)
            if sequence.region is None:
                break
            self._waiting.popleft()
            slot = self._free_slots.pop()
            sequence.admitted_at = now
            self._num_prompt_tokens += sequence.num_prompt_tokens
            self._bound[slot] = sequence
            admitted.append(slot)
            chunks[slot] = min(budget, sequence.num_prompt_tokens)
            budget -= chunks[slot]
        return admitted

    def _finish(self, slot: int, reason: FinishReason) -> Ending:
        sequence = self._bound.pop(slot)
        assert sequence.region is not None
        self._memory.free(sequence.region)
        self._free_slots.append(slot)
        self._released_slots.append(slot)
        self._num_finished[reason] += 1
        event = ChoiceFinished(
            choice_index=0, reason=reason, num_output_tokens=sequence.num_output_tokens, num_cached_tokens=0
        )
        facts = ChoiceFacts(
            num_prompt_tokens=sequence.num_prompt_tokens,
            arrived_at=sequence.arrived_at,
            admitted_at=sequence.admitted_at,
            first_token_at=sequence.first_token_at,
            num_preemptions=0,
        )
        return Ending(sequence.key, sequence.request.request_id, event, facts)


def _admission(slot: int, sequence: _Sequence) -> Admission:
    assert sequence.region is not None
    start, length = sequence.region
    return Admission(
        slot=slot,
        token_ids=sequence.request.prompt_token_ids,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=0,
        block_ids=tuple(range(start, start + length)),
        sampling=sequence.request.sampling,
    )
