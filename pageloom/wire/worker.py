"""The plan stream's messages: Hello, plans, results."""

from __future__ import annotations

from pageloom.plan import Admission, BatchPlan, StepResult, WorkerHello
from pageloom.rpc.v1 import worker_pb2
from pageloom.wire.common import (
    cache_from_proto,
    cache_to_proto,
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
PROTOCOL_VERSION = 2


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
    )


def plan_from_proto(message: worker_pb2.BatchPlan) -> BatchPlan:
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
    )


def result_to_proto(result: StepResult) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(
        epoch=result.epoch,
        step=result.step,
        slots=result.slots,
        token_ids=result.token_ids,
        logprob_slots=list(result.logprobs),
        logprobs=[logprobs_to_proto(logprobs) for logprobs in result.logprobs.values()],
        failed_slots=list(result.failures),
        failure_messages=list(result.failures.values()),
        duration_us=round(result.duration_s * 1e6),
        scored_slots=list(result.prompt_logprobs),
        prompt_logprobs=[prompt_logprobs_to_proto(scores) for scores in result.prompt_logprobs.values()],
        pooled_slots=list(result.embeddings),
        embeddings=list(result.embeddings.values()),
    )


def result_from_proto(message: worker_pb2.StepResult) -> StepResult:
    logprobs = map(logprobs_from_proto, message.logprobs)
    prompt_logprobs = map(prompt_logprobs_from_proto, message.prompt_logprobs)
    return StepResult(
        epoch=message.epoch,
        step=message.step,
        slots=tuple(message.slots),
        token_ids=tuple(message.token_ids),
        logprobs=dict(zip(message.logprob_slots, logprobs, strict=True)),
        failures=dict(zip(message.failed_slots, message.failure_messages, strict=True)),
        prompt_logprobs=dict(zip(message.scored_slots, prompt_logprobs, strict=True)),
        embeddings=dict(zip(message.pooled_slots, message.embeddings, strict=True)),
        duration_s=message.duration_us / 1e6,
    )
