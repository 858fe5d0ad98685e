"""Dataclass <-> protobuf, both ways, for every message. The only place that knows both."""

from __future__ import annotations

from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, TokenLogprobs, TokensGenerated
from pageloom.plan import Admission, BatchPlan, CacheInfo, ModelInfo, StepResult, WorkerHello
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import common_pb2, engine_pb2, worker_pb2
from pageloom.sampling_params import SamplingParams

# Raised whenever the meaning of the plan stream changes; both ends must have the same.
PROTOCOL_VERSION = 1

_REASON_TO_PROTO = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}


def sampling_to_proto(sampling: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        seed=sampling.seed,
    )


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidRequest if a value is out of range."""
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        logit_bias=dict(message.logit_bias),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        seed=message.seed if message.HasField("seed") else None,
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    return common_pb2.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def logprobs_from_proto(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, tuple(message.top_token_ids), tuple(message.top_logprobs))


def model_to_proto(model: ModelInfo) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        name=model.name,
        digest=model.digest,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        dtype=model.dtype,
        weights_bytes=model.weights_bytes,
    )


def model_from_proto(message: common_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        digest=message.digest,
        architecture=message.architecture,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        dtype=message.dtype,
        weights_bytes=message.weights_bytes,
    )


def cache_to_proto(cache: CacheInfo) -> common_pb2.CacheInfo:
    return common_pb2.CacheInfo(block_size=cache.block_size, num_blocks=cache.num_blocks, kv_bytes=cache.kv_bytes)


def cache_from_proto(message: common_pb2.CacheInfo) -> CacheInfo:
    return CacheInfo(block_size=message.block_size, num_blocks=message.num_blocks, kv_bytes=message.kv_bytes)


def generate_request_to_proto(request: GenerateRequest) -> engine_pb2.GenerateRequest:
    return engine_pb2.GenerateRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        n=request.n,
        sampling=sampling_to_proto(request.sampling),
        priority=request.priority,
        cache_salt=request.cache_salt,
        resume=[
            engine_pb2.ResumedChoice(choice_index=choice_index, token_ids=token_ids)
            for choice_index, token_ids in request.resume
        ],
    )


def generate_request_from_proto(message: engine_pb2.GenerateRequest) -> GenerateRequest:
    """Raises InvalidRequest if a sampling parameter is out of range."""
    return GenerateRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        n=message.n if message.HasField("n") else 1,
        sampling=sampling_from_proto(message.sampling),
        priority=message.priority,
        cache_salt=message.cache_salt,
        resume=tuple((choice.choice_index, tuple(choice.token_ids)) for choice in message.resume),
    )


def event_to_proto(event: GenerateEvent) -> engine_pb2.GenerateEvent:
    if isinstance(event, TokensGenerated):
        tokens = engine_pb2.TokensGenerated(
            first_index=event.first_index,
            token_ids=event.token_ids,
            logprobs=[logprobs_to_proto(logprobs) for logprobs in event.logprobs],
        )
        return engine_pb2.GenerateEvent(choice_index=event.choice_index, tokens=tokens)
    finished = engine_pb2.ChoiceFinished(
        reason=_REASON_TO_PROTO[event.reason],
        stop_token_id=event.stop_token_id,
        num_output_tokens=event.num_output_tokens,
        num_cached_tokens=event.num_cached_tokens,
        error_message=event.error_message,
    )
    return engine_pb2.GenerateEvent(choice_index=event.choice_index, finished=finished)


def event_from_proto(message: engine_pb2.GenerateEvent) -> GenerateEvent:
    if message.HasField("tokens"):
        tokens = message.tokens
        return TokensGenerated(
            choice_index=message.choice_index,
            first_index=tokens.first_index,
            token_ids=tuple(tokens.token_ids),
            logprobs=tuple(logprobs_from_proto(logprobs) for logprobs in tokens.logprobs),
        )
    finished = message.finished
    return ChoiceFinished(
        choice_index=message.choice_index,
        reason=_REASON_FROM_PROTO[finished.reason],
        num_output_tokens=finished.num_output_tokens,
        num_cached_tokens=finished.num_cached_tokens,
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
        error_message=finished.error_message,
    )


def engine_info_to_proto(info: EngineInfo) -> engine_pb2.InfoResponse:
    return engine_pb2.InfoResponse(
        version=info.version,
        model=None if info.model is None else model_to_proto(info.model),
        workers=[
            engine_pb2.WorkerInfo(
                worker_id=worker.worker_id,
                epoch=worker.epoch,
                cache=cache_to_proto(worker.cache),
                num_free_blocks=worker.num_free_blocks,
            )
            for worker in info.workers
        ],
        num_running=info.num_running,
        num_waiting=info.num_waiting,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        draining=info.draining,
    )


def engine_info_from_proto(message: engine_pb2.InfoResponse) -> EngineInfo:
    return EngineInfo(
        version=message.version,
        model=model_from_proto(message.model) if message.HasField("model") else None,
        workers=tuple(
            WorkerInfo(
                worker_id=worker.worker_id,
                epoch=worker.epoch,
                cache=cache_from_proto(worker.cache),
                num_free_blocks=worker.num_free_blocks,
            )
            for worker in message.workers
        ),
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        draining=message.draining,
    )


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
    )


def result_from_proto(message: worker_pb2.StepResult) -> StepResult:
    logprobs = map(logprobs_from_proto, message.logprobs)
    return StepResult(
        epoch=message.epoch,
        step=message.step,
        slots=tuple(message.slots),
        token_ids=tuple(message.token_ids),
        logprobs=dict(zip(message.logprob_slots, logprobs, strict=True)),
        failures=dict(zip(message.failed_slots, message.failure_messages, strict=True)),
        duration_s=message.duration_us / 1e6,
    )
