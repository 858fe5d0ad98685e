"""The Engine service's messages: requests, events, timelines, what is served."""

from __future__ import annotations

from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, PromptLogprobs, TokensGenerated
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import common_pb2, engine_pb2
from pageloom.timeline import Run, Timeline, Wait, WaitReason
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

_REASON_TO_PROTO = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.DEADLINE: common_pb2.FINISH_REASON_DEADLINE,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}
_WAIT_TO_PROTO = {
    WaitReason.QUEUE: engine_pb2.WAIT_REASON_QUEUE,
    WaitReason.SLOTS: engine_pb2.WAIT_REASON_SLOTS,
    WaitReason.BLOCKS: engine_pb2.WAIT_REASON_BLOCKS,
    WaitReason.PREFIX: engine_pb2.WAIT_REASON_PREFIX,
    WaitReason.WORKER: engine_pb2.WAIT_REASON_WORKER,
}
_WAIT_FROM_PROTO = {number: reason for reason, number in _WAIT_TO_PROTO.items()}


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
        tenant=request.tenant,
        deadline_s=request.deadline_s,
        include_timeline=request.include_timeline,
        wait_for_tokens=request.wait_for_tokens,
        pooling=pooling_to_proto(request.pooling),
    )


def generate_request_from_proto(message: engine_pb2.GenerateRequest) -> GenerateRequest:
    """Raises InvalidRequest if a sampling parameter is out of range, or there is no such pooling."""
    return GenerateRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        n=message.n if message.HasField("n") else 1,
        sampling=sampling_from_proto(message.sampling),
        priority=message.priority,
        cache_salt=message.cache_salt,
        resume=tuple((choice.choice_index, tuple(choice.token_ids)) for choice in message.resume),
        tenant=message.tenant,
        deadline_s=message.deadline_s if message.HasField("deadline_s") else None,
        include_timeline=message.include_timeline,
        wait_for_tokens=message.wait_for_tokens,
        pooling=pooling_from_proto(message.pooling),
    )


def event_to_proto(event: GenerateEvent) -> engine_pb2.GenerateEvent:
    if isinstance(event, TokensGenerated):
        tokens = engine_pb2.TokensGenerated(
            first_index=event.first_index,
            token_ids=event.token_ids,
            logprobs=[logprobs_to_proto(logprobs) for logprobs in event.logprobs],
        )
        return engine_pb2.GenerateEvent(choice_index=event.choice_index, tokens=tokens)
    if isinstance(event, PromptLogprobs):
        return engine_pb2.GenerateEvent(prompt_logprobs=prompt_logprobs_to_proto(event))
    return engine_pb2.GenerateEvent(choice_index=event.choice_index, finished=finished_to_proto(event))


def event_from_proto(message: engine_pb2.GenerateEvent) -> GenerateEvent:
    if message.HasField("tokens"):
        tokens = message.tokens
        return TokensGenerated(
            choice_index=message.choice_index,
            first_index=tokens.first_index,
            token_ids=tuple(tokens.token_ids),
            logprobs=tuple(logprobs_from_proto(logprobs) for logprobs in tokens.logprobs),
        )
    if message.HasField("prompt_logprobs"):
        return prompt_logprobs_from_proto(message.prompt_logprobs)
    return finished_from_proto(message.choice_index, message.finished)


def finished_to_proto(event: ChoiceFinished) -> engine_pb2.ChoiceFinished:
    """Without the choice's index, which the message around it carries."""
    return engine_pb2.ChoiceFinished(
        reason=_REASON_TO_PROTO[event.reason],
        stop_token_id=event.stop_token_id,
        num_output_tokens=event.num_output_tokens,
        num_cached_tokens=event.num_cached_tokens,
        error_message=event.error_message,
        error_param=event.error_param,
        timeline=None if event.timeline is None else timeline_to_proto(event.timeline),
        embedding=event.embedding,
    )


def finished_from_proto(choice_index: int, finished: engine_pb2.ChoiceFinished) -> ChoiceFinished:
    return ChoiceFinished(
        choice_index=choice_index,
        reason=_REASON_FROM_PROTO[finished.reason],
        num_output_tokens=finished.num_output_tokens,
        num_cached_tokens=finished.num_cached_tokens,
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
        error_message=finished.error_message,
        error_param=finished.error_param,
        timeline=timeline_from_proto(finished.timeline) if finished.HasField("timeline") else None,
        embedding=finished.embedding,
    )


def timeline_to_proto(timeline: Timeline) -> engine_pb2.Timeline:
    return engine_pb2.Timeline(
        waits=[
            engine_pb2.Wait(
                reason=_WAIT_TO_PROTO[wait.reason],
                start_s=wait.start_s,
                end_s=wait.end_s,
                num_ahead=wait.num_ahead,
                behind_request_ids=wait.behind_request_ids,
                num_missing_blocks=wait.num_missing_blocks,
            )
            for wait in timeline.waits
        ],
        runs=[
            engine_pb2.Run(
                worker_id=run.worker_id,
                start_s=run.start_s,
                end_s=run.end_s,
                num_cached_tokens=run.num_cached_tokens,
                num_steps=run.num_steps,
                num_held_steps=run.num_held_steps,
                preempted_by=run.preempted_by,
                worker_lost=run.worker_lost,
            )
            for run in timeline.runs
        ],
        first_token_s=timeline.first_token_s,
        finished_s=timeline.finished_s,
    )


def timeline_from_proto(message: engine_pb2.Timeline) -> Timeline:
    return Timeline(
        waits=tuple(
            Wait(
                reason=_WAIT_FROM_PROTO[wait.reason],
                start_s=wait.start_s,
                end_s=wait.end_s if wait.HasField("end_s") else None,
                num_ahead=wait.num_ahead,
                behind_request_ids=tuple(wait.behind_request_ids),
                num_missing_blocks=wait.num_missing_blocks,
            )
            for wait in message.waits
        ),
        runs=tuple(
            Run(
                worker_id=run.worker_id,
                start_s=run.start_s,
                end_s=run.end_s if run.HasField("end_s") else None,
                num_cached_tokens=run.num_cached_tokens,
                num_steps=run.num_steps,
                num_held_steps=run.num_held_steps,
                preempted_by=run.preempted_by,
                worker_lost=run.worker_lost,
            )
            for run in message.runs
        ),
        first_token_s=message.first_token_s if message.HasField("first_token_s") else None,
        finished_s=message.finished_s if message.HasField("finished_s") else None,
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
                num_running=worker.num_running,
                draining=worker.draining,
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
                num_running=worker.num_running,
                draining=worker.draining,
            )
            for worker in message.workers
        ),
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        draining=message.draining,
    )
