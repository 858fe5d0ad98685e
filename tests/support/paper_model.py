"""A worker and a model on paper: blocks hold numbers, and the next token is a hash of what the block table reads.

The KV of a token stands for the token and everything before it, as in a real model. So whatever the
scheduler gets wrong (a stale block, a hit on another prefix, a chunk off by one) changes the text,
and `solo_run` says what the text should have been.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

from pageloom.outputs import FinishReason, PromptLogprobs, TokenLogprobs
from pageloom.plan import Admission, BatchPlan, CacheInfo, Failure, ModelInfo, StepResult, WorkerHello
from pageloom.policies import Pooling
from pageloom.sampling_params import SamplingParams

PAPER_EOS_TOKEN_ID = 1
PAPER_MODEL = ModelInfo(
    name="paper",
    digest="digest-of-paper",
    architecture="paper",
    vocab_size=40,
    max_model_len=128,
    eos_token_ids=(PAPER_EOS_TOKEN_ID,),
    dtype="float32",
    weights_bytes=0,
    hidden_size=2,
)


def paper_hello(
    worker_id: str = "worker",
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    num_stages: int = 1,
    model: ModelInfo = PAPER_MODEL,
    max_num_draft_tokens: int = 0,
) -> WorkerHello:
    return WorkerHello(
        worker_id=worker_id,
        boot_id="boot",
        model=model,
        cache=CacheInfo(block_size=block_size, num_blocks=num_blocks, kv_bytes=0),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_stages=num_stages,
        max_num_draft_tokens=max_num_draft_tokens,
    )


def kv_of(context: list[int], token_id: int) -> int:
    """The KV of a token after a context of KVs."""
    return hash((token_id, *context))


def draw(context: list[int], sampling: SamplingParams, choice_index: int, position: int, num_output: int) -> int:
    """The token at `position`, keyed as in a real sampler; masks what would stop before min_tokens."""
    number = hash((*context, sampling.seed, choice_index, position))
    banned = stops(sampling) if num_output < sampling.min_tokens else frozenset[int]()
    while number % PAPER_MODEL.vocab_size in banned:
        number = hash((number, 1))
    return number % PAPER_MODEL.vocab_size


def score(context: list[int], first_index: int, tokens: list[int], num_top: int) -> PromptLogprobs:
    """Of the prompt tokens from `first_index` on, each a number that only the KV of the tokens before it gives."""
    numbers = [hash((*context[: first_index + row], token_id)) for row, token_id in enumerate(tokens)]
    return PromptLogprobs(
        first_index=first_index,
        logprobs=tuple(-(number % 65536) / 4096 for number in numbers),
        ranks=tuple(1 + number % PAPER_MODEL.vocab_size for number in numbers),
        top_token_ids=tuple((number + at) % PAPER_MODEL.vocab_size for number in numbers for at in range(num_top)),
        top_logprobs=tuple(-float(at) for _ in numbers for at in range(num_top)),
    )


def _noise(*key: int) -> int:
    """A number that looks random, and is the same in every run."""
    return hash((*key, 0x9E3779B97F4A7C15)) >> 7


def pool(kv: Collection[int]) -> bytes:
    """The embedding that these KVs make, and no others."""
    return (hash(tuple(kv)) % 2**64).to_bytes(8, "little")


def stops(sampling: SamplingParams) -> frozenset[int]:
    eos_token_ids = PAPER_MODEL.eos_token_ids if sampling.ends_at_eos else ()
    return frozenset((*eos_token_ids, *sampling.stop_token_ids))


@dataclass(frozen=True, slots=True)
class SoloRun:
    """What a choice comes to when it runs alone: all its output tokens, the KV of all tokens but the last, and why
    it ends. If its prompt is pooled there are none, and the KV is that of the prompt."""

    token_ids: list[int]
    kv: list[int]
    reason: FinishReason
    stop_token_id: int | None
    embedding: bytes = b""


def solo_pooling(prompt: tuple[int, ...], pooling: Pooling) -> SoloRun:
    """What a prompt comes to that is pooled."""
    context: list[int] = []
    for token_id in prompt:
        context.append(kv_of(context, token_id))
    pooled = context if pooling is Pooling.mean else context[-1:]
    return SoloRun([], context, FinishReason.STOP, None, pool(pooled))


def solo_run(prompt: tuple[int, ...], sampling: SamplingParams, choice_index: int) -> SoloRun:
    """Runs a choice without scheduler, blocks or batches; max_tokens must be set."""
    context: list[int] = []
    for token_id in prompt:
        context.append(kv_of(context, token_id))
    output: list[int] = []
    stop_token_ids = stops(sampling)
    while True:
        token_id = draw(context, sampling, choice_index, len(context), len(output))
        output.append(token_id)
        if token_id in stop_token_ids and len(output) > sampling.min_tokens:
            return SoloRun(output, context, FinishReason.STOP, token_id)
        if len(output) == sampling.max_tokens:
            return SoloRun(output, context, FinishReason.LENGTH, None)
        context.append(kv_of(context, token_id))


@dataclass(slots=True)
class PaperSlot:
    """What a worker keeps of a choice: its tokens, its block table, and how far it has come."""

    admission: Admission
    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    continues: bool = False
    draft_limit: int = 0
    # Of a prompt whose mean is asked for, the KV of what ran since it was bound.
    pooled_kv: list[int] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Tokens that it may still draw."""
        max_tokens = self.admission.sampling.max_tokens
        assert max_tokens is not None
        return self.admission.num_prompt_tokens + max_tokens - len(self.token_ids)

    @property
    def num_drawn_tokens(self) -> int:
        """Since it was bound."""
        return len(self.token_ids) - len(self.admission.token_ids)


class PaperWorker:
    """Carries out plans by the letter of worker.proto, one after the other, and asserts that they keep to it."""

    def __init__(self, hello: WorkerHello, epoch: int) -> None:
        self.hello = hello
        self.epoch = epoch
        self.step = 0
        self.slots: dict[int, PaperSlot] = {}
        block_size, num_blocks = hello.cache.block_size, hello.cache.num_blocks
        # What was never written reads as garbage, different in each place.
        start = epoch * 1_000_000 + 1
        self._kv = [
            [-(start + block_id * block_size + at) for at in range(block_size)] for block_id in range(num_blocks)
        ]
        # The step that wrote each place; 0 is none.
        self._written_by = [[0] * block_size for _ in range(num_blocks)]

    def apply(self, plan: BatchPlan) -> dict[int, int]:
        """Changes the slots as planned; returns how many tokens each slot has to run."""
        assert plan.epoch == self.epoch, "a plan of another epoch"
        assert plan.step == self.step + 1, "a gap in the steps"
        assert plan.snapshot == (plan.step == 1), "the first plan, and only that, is a snapshot"
        self.step = plan.step
        if plan.snapshot:
            self.slots.clear()
        for slot in plan.released_slots:
            del self.slots[slot]
        for admission in plan.admissions:
            self._admit(admission)
        block_ids = iter(plan.grown_block_ids)
        for slot, count in zip(plan.grown_slots, plan.grown_counts, strict=True):
            self.slots[slot].block_ids += itertools.islice(block_ids, count)
        assert next(block_ids, None) is None, "blocks for nobody"
        assert len(set(plan.grown_slots)) == len(plan.grown_slots), "a slot grows twice"
        for slot, limit in zip(plan.draft_slots, plan.draft_limits, strict=True):
            assert 0 <= limit <= self.hello.max_num_draft_tokens, "a draft limit that the worker does not have"
            assert limit != self.slots[slot].draft_limit, "a change that is none"
            self.slots[slot].draft_limit = limit
        self._copy(plan.copy_source_block_ids, plan.copy_target_block_ids)
        return self._runs(plan)

    def execute(self, runs: dict[int, int], failing_slots: Collection[int] = ()) -> StepResult:
        """Runs a step. Nobody sees what another slot writes in the same step; failing ones write garbage."""
        written: dict[tuple[int, int], int] = {}
        drawn: dict[int, list[int]] = {}
        num_drafts: dict[int, int] = {}
        starts = {slot: self.slots[slot].num_computed_tokens for slot in runs}
        for slot, num_tokens in runs.items():
            state, failing = self.slots[slot], slot in failing_slots
            # The run of one that continues is for the one token that it drew last.
            verifies = state.continues
            token_id = self._run(state, num_tokens, written, failing=failing)
            if token_id is not None:
                drawn[slot], num_drafts[slot] = [token_id], 0
                if verifies:
                    num_drafts[slot] = self._verify(slot, drawn[slot], written)
        for (block_id, offset), value in written.items():
            self._kv[block_id][offset] = value
            self._written_by[block_id][offset] = self.step
        embeddings = {
            slot: pool(self.slots[slot].pooled_kv)
            for slot in runs
            if slot not in failing_slots and self._has_pooled(self.slots[slot])
        }
        scored = {slot: self._scores(self.slots[slot], starts[slot]) for slot in runs if slot not in failing_slots}
        return StepResult(
            epoch=self.epoch,
            step=self.step,
            slots=tuple(drawn),
            token_ids=tuple(itertools.chain.from_iterable(drawn.values())),
            token_counts=tuple(map(len, drawn.values())) if any(num_drafts.values()) else (),
            draft_counts=tuple(num_drafts.values()) if any(num_drafts.values()) else (),
            draft_limit=self._worth(),
            logprobs={
                slot: tuple(TokenLogprobs(-1.0, (token_id,), (-1.0,)) for token_id in token_ids)
                for slot, token_ids in drawn.items()
                if self.slots[slot].admission.sampling.logprobs is not None
            },
            failures=dict.fromkeys(failing_slots, Failure("no numbers")),
            prompt_logprobs={slot: scores for slot, scores in scored.items() if scores is not None},
            embeddings=embeddings,
        )

    def kv(self, slot: PaperSlot) -> list[int]:
        """What the slot's computed tokens read."""
        return self._read(self._kv, slot.block_ids, slot.num_computed_tokens)

    def writing_steps(self, slot: PaperSlot) -> list[int]:
        """The steps that wrote what the slot's computed tokens read."""
        return self._read(self._written_by, slot.block_ids, slot.num_computed_tokens)

    def _read(self, places: list[list[int]], block_ids: list[int], num_tokens: int) -> list[int]:
        values: list[int] = []
        for block_id in block_ids[: -(-num_tokens // self.hello.cache.block_size)]:
            values += places[block_id]
        del values[num_tokens:]
        return values

    def _admit(self, admission: Admission) -> None:
        assert 0 <= admission.slot < self.hello.max_num_seqs, "no such slot"
        assert admission.slot not in self.slots, "the slot is bound"
        assert 0 <= admission.num_computed_tokens < len(admission.token_ids), "nothing to run"
        assert 1 <= admission.num_prompt_tokens <= len(admission.token_ids), "no prompt"
        assert admission.sampling.seed is not None, "no seed"
        assert admission.sampling.max_tokens is not None, "no max_tokens"
        first = admission.first_scored_token
        assert first == 0 or admission.num_computed_tokens < first < admission.num_prompt_tokens, "cannot score that"
        assert first == 0 or admission.sampling.prompt_logprobs is not None, "scores that nobody asked for"
        if admission.pooling is not None:
            assert admission.num_prompt_tokens == len(admission.token_ids), "pools what is no prompt"
            assert admission.num_computed_tokens == 0 or admission.pooling is Pooling.last, "a mean without its start"
        self.slots[admission.slot] = PaperSlot(
            admission, list(admission.token_ids), list(admission.block_ids), admission.num_computed_tokens
        )

    def _scores(self, slot: PaperSlot, start: int) -> PromptLogprobs | None:
        """After a run from `start` on."""
        admission = slot.admission
        first = max(admission.first_scored_token, start + 1)
        end = min(slot.num_computed_tokens + 1, admission.num_prompt_tokens)
        if not admission.first_scored_token or first >= end:
            return None
        num_top = admission.sampling.prompt_logprobs
        assert num_top is not None
        return score(self.kv(slot), first, slot.token_ids[first:end], num_top)

    def _has_pooled(self, slot: PaperSlot) -> bool:
        return slot.admission.pooling is not None and slot.num_computed_tokens == len(slot.token_ids)

    def _copy(self, source_block_ids: tuple[int, ...], target_block_ids: tuple[int, ...]) -> None:
        """Block copies, all at once: the order of the pairs must not matter."""
        assert len(set(target_block_ids)) == len(target_block_ids), "two copies into one block"
        assert not set(target_block_ids) & set(source_block_ids), "copies from a block that is copied into"
        for source, target in zip(source_block_ids, target_block_ids, strict=True):
            self._kv[target] = list(self._kv[source])
            self._written_by[target] = list(self._written_by[source])

    def _runs(self, plan: BatchPlan) -> dict[int, int]:
        runs = dict(zip(plan.chunk_slots, plan.chunk_lens, strict=True))
        assert len(runs) == len(plan.chunk_slots), "a slot has two chunks"
        # Who failed in a step that the scheduler had not heard of yet may be held too.
        assert all(slot in self.slots and slot not in runs for slot in plan.held_slots), "holds what cannot run"
        for slot, state in self.slots.items():
            if state.continues and state.num_left and slot not in runs and slot not in plan.held_slots:
                runs[slot] = 1
        num_drafts = sum(self.slots[slot].draft_limit for slot in runs if self.slots[slot].continues)
        num_tokens = sum(runs.values()) + num_drafts
        assert num_tokens <= self.hello.max_num_batched_tokens, "more tokens than the worker takes"
        return runs

    def _worth(self) -> int | None:
        """Now and then it finds fewer drafts worth it."""
        if not self.hello.max_num_draft_tokens or self.step % 3:
            return None
        return _noise(self.epoch, self.step) % (self.hello.max_num_draft_tokens + 1)

    def _verify(self, slot: int, drawn: list[int], written: dict[tuple[int, int], int]) -> int:
        """Runs drafts after a token was drawn, as if they had been guessed before: from some point on they are wrong.
        Draws after each that is right, also after one that ends the choice. Returns how many were run."""
        state, sampling = self.slots[slot], self.slots[slot].admission.sampling
        block_size, start = self.hello.cache.block_size, state.num_computed_tokens
        num_room = len(state.block_ids) * block_size - start
        num_drafts = _noise(self.epoch, self.step, slot) % (min(state.draft_limit, num_room, state.num_left) + 1)
        context = self.kv(state)
        context[-1] = written[state.block_ids[(start - 1) // block_size], (start - 1) % block_size]
        num_right = _noise(slot, self.step, self.epoch) % (num_drafts + 1)
        for at, position in enumerate(range(start, start + num_drafts)):
            token_id = state.token_ids[-1] if at < num_right else (state.token_ids[-1] + 1) % PAPER_MODEL.vocab_size
            context.append(kv_of(context, token_id))
            place = (state.block_ids[position // block_size], position % block_size)
            assert place not in written, "two slots write one place"
            written[place] = context[-1]
            if at < num_right:
                state.num_computed_tokens += 1
                num_output = len(state.token_ids) - state.admission.num_prompt_tokens
                drawn.append(draw(context, sampling, state.admission.choice_index, position + 1, num_output))
                state.token_ids.append(drawn[-1])
        return num_drafts

    def _run(
        self, slot: PaperSlot, num_tokens: int, written: dict[tuple[int, int], int], *, failing: bool
    ) -> int | None:
        block_size, block_ids = self.hello.cache.block_size, slot.block_ids
        start, end = slot.num_computed_tokens, slot.num_computed_tokens + num_tokens
        assert num_tokens >= 1, "an empty chunk"
        assert end <= len(slot.token_ids), "runs tokens that nobody knows"
        assert end <= len(block_ids) * block_size, "writes past its blocks"
        context = self.kv(slot)
        for position in range(start, end):
            value = kv_of(context, slot.token_ids[position]) if not failing else -position
            context.append(value)
            place = (block_ids[position // block_size], position % block_size)
            assert place not in written, "two slots write one place"
            written[place] = value
        slot.num_computed_tokens = end
        if slot.admission.pooling is not None:
            slot.pooled_kv = (
                context[-1:] if slot.admission.pooling is Pooling.last else slot.pooled_kv + context[start:]
            )
            return None
        slot.continues = not failing and end == len(slot.token_ids)
        if not slot.continues:
            return None
        admission = slot.admission
        num_output = len(slot.token_ids) - admission.num_prompt_tokens
        assert admission.sampling.max_tokens is not None
        assert num_output < admission.sampling.max_tokens, "draws beyond max_tokens"
        token_id = draw(context, admission.sampling, admission.choice_index, end, num_output)
        slot.token_ids.append(token_id)
        return token_id
