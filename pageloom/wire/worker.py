"""The plan stream's messages: Hello, plans, results."""

from __future__ import annotations

from itertools import starmap, zip_longest

from pageloom.outputs import TokenLogprobs
from pageloom.plan import Admission, BatchPlan, Failure, StepResult, WorkerHello
from pageloom.rpc.v1 import worker_pb2
from pageloom.wire.common import (
    cache_from_proto,
    cache_to_proto,
    has_only,
    logprobs_from_proto,
    logprobs_to_proto,
    model_from_proto,
    model_to_proto,
    pooling_from_proto,
    pooling_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)

# Raised whenever the meaning of the plan stream changes; both ends must have the same.
PROTOCOL_VERSION = 3

# What almost all plans and results have, and nothing else.
_CONTINUING_FIELDS = frozenset({"epoch", "step"})
_TOKEN_FIELDS = frozenset({"epoch", "step", "slots", "token_ids", "duration_us"})


def hello_to_proto(hello: WorkerHello) -> worker_pb2.Hello:
    return worker_pb2.Hello(
        worker_id=hello.worker_id,
        boot_id=hello.boot_id,
        protocol_version=PROTOCOL_VERSION,
        model=model_to_proto(hello.model),
        cache=cache_to_proto(hello.cache),
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        highest_epoch=hello.highest_epoch,
        max_num_draft_tokens=hello.max_num_draft_tokens,
        num_stages=hello.num_stages,
    )


def hello_from_proto(message: worker_pb2.Hello) -> WorkerHello:
    return WorkerHello(
        worker_id=message.worker_id,
        boot_id=message.boot_id,
        model=model_from_proto(message.model),
        cache=cache_from_proto(message.cache),
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        highest_epoch=message.highest_epoch,
        max_num_draft_tokens=message.max_num_draft_tokens,
        num_stages=max(1, message.num_stages),
    )


def admission_to_proto(admission: Admission) -> worker_pb2.Admission:
    return worker_pb2.Admission(
        slot=admission.slot,
        token_ids=admission.token_ids,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        block_ids=admission.block_ids,
        sampling=sampling_to_proto(admission.sampling),
        choice_index=admission.choice_index,
        first_scored_token=admission.first_scored_token,
        pooling=pooling_to_proto(admission.pooling),
    )


def admission_from_proto(message: worker_pb2.Admission) -> Admission:
    return Admission(
        slot=message.slot,
        token_ids=tuple(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        block_ids=tuple(message.block_ids),
        sampling=sampling_from_proto(message.sampling),
        choice_index=message.choice_index,
        first_scored_token=message.first_scored_token,
        pooling=pooling_from_proto(message.pooling),
    )


def plan_to_proto(plan: BatchPlan) -> worker_pb2.BatchPlan:
    return worker_pb2.BatchPlan(
        epoch=plan.epoch,
        step=plan.step,
        snapshot=plan.snapshot,
        released_slots=plan.released_slots,
        admissions=[admission_to_proto(admission) for admission in plan.admissions],
        grown_slots=plan.grown_slots,
        grown_counts=plan.grown_counts,
        grown_block_ids=plan.grown_block_ids,
        chunk_slots=plan.chunk_slots,
        chunk_lens=plan.chunk_lens,
        held_slots=plan.held_slots,
        copy_source_block_ids=plan.copy_source_block_ids,
        copy_target_block_ids=plan.copy_target_block_ids,
        draft_slots=plan.draft_slots,
        draft_limits=plan.draft_limits,
    )


def plan_from_proto(message: worker_pb2.BatchPlan) -> BatchPlan:
    if has_only(message, _CONTINUING_FIELDS):
        return BatchPlan(epoch=message.epoch, step=message.step)
    return BatchPlan(
        epoch=message.epoch,
        step=message.step,
        snapshot=message.snapshot,
        released_slots=tuple(message.released_slots),
        admissions=tuple(admission_from_proto(admission) for admission in message.admissions),
        grown_slots=tuple(message.grown_slots),
        grown_counts=tuple(message.grown_counts),
        grown_block_ids=tuple(message.grown_block_ids),
        chunk_slots=tuple(message.chunk_slots),
        chunk_lens=tuple(message.chunk_lens),
        held_slots=tuple(message.held_slots),
        copy_source_block_ids=tuple(message.copy_source_block_ids),
        copy_target_block_ids=tuple(message.copy_target_block_ids),
        draft_slots=tuple(message.draft_slots),
        draft_limits=tuple(message.draft_limits),
    )


def result_to_proto(result: StepResult) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(
        epoch=result.epoch,
        step=result.step,
        slots=result.slots,
        token_ids=result.token_ids,
        token_counts=result.token_counts,
        draft_counts=result.draft_counts,
        draft_limit=result.draft_limit,
        logprob_slots=[slot for slot, logprobs in result.logprobs.items() for _ in logprobs],
        logprobs=[logprobs_to_proto(one) for logprobs in result.logprobs.values() for one in logprobs],
        failed_slots=list(result.failures),
        failure_messages=[failure.message for failure in result.failures.values()],
        failure_params=[failure.param for failure in result.failures.values()],
        duration_us=round(result.duration_s * 1e6),
        undrafted_duration_us=round(result.undrafted_duration_s * 1e6),
        scored_slots=list(result.prompt_logprobs),
        prompt_logprobs=[prompt_logprobs_to_proto(scores) for scores in result.prompt_logprobs.values()],
        pooled_slots=list(result.embeddings),
        embeddings=list(result.embeddings.values()),
    )


def result_from_proto(message: worker_pb2.StepResult) -> StepResult:
    if has_only(message, _TOKEN_FIELDS):
        return StepResult(
            epoch=message.epoch,
            step=message.step,
            slots=tuple(message.slots),
            token_ids=tuple(message.token_ids),
            duration_s=message.duration_us / 1e6,
        )
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    for slot, one in zip(message.logprob_slots, message.logprobs, strict=True):
        logprobs[slot] = (*logprobs.get(slot, ()), logprobs_from_proto(one))
    # Recordings from before failures had a field are read, too.
    failures = starmap(Failure, zip_longest(message.failure_messages, message.failure_params, fillvalue=""))
    prompt_logprobs = map(prompt_logprobs_from_proto, message.prompt_logprobs)
    return StepResult(
        epoch=message.epoch,
        step=message.step,
        slots=tuple(message.slots),
        token_ids=tuple(message.token_ids),
        token_counts=tuple(message.token_counts),
        draft_counts=tuple(message.draft_counts),
        draft_limit=message.draft_limit if message.HasField("draft_limit") else None,
        logprobs=logprobs,
        failures=dict(zip(message.failed_slots, failures, strict=True)),
        prompt_logprobs=dict(zip(message.scored_slots, prompt_logprobs, strict=True)),
        embeddings=dict(zip(message.pooled_slots, message.embeddings, strict=True)),
        duration_s=message.duration_us / 1e6,
        undrafted_duration_s=message.undrafted_duration_us / 1e6,
    )
