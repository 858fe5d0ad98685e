from pageloom.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_QUEUE: _ClassVar[WaitReason]
    WAIT_REASON_SLOTS: _ClassVar[WaitReason]
    WAIT_REASON_BLOCKS: _ClassVar[WaitReason]
    WAIT_REASON_PREFIX: _ClassVar[WaitReason]
    WAIT_REASON_WORKER: _ClassVar[WaitReason]
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_QUEUE: WaitReason
WAIT_REASON_SLOTS: WaitReason
WAIT_REASON_BLOCKS: WaitReason
WAIT_REASON_PREFIX: WaitReason
WAIT_REASON_WORKER: WaitReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "n", "sampling", "priority", "cache_salt", "resume", "tenant", "deadline_s", "include_timeline", "wait_for_tokens", "pooling")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    n: int
    sampling: _common_pb2.SamplingParams
    priority: int
    cache_salt: str
    resume: _containers.RepeatedCompositeFieldContainer[ResumedChoice]
    tenant: str
    deadline_s: float
    include_timeline: bool
    wait_for_tokens: bool
    pooling: _common_pb2.Pooling
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., n: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., resume: _Optional[_Iterable[_Union[ResumedChoice, _Mapping]]] = ..., tenant: _Optional[str] = ..., deadline_s: _Optional[float] = ..., include_timeline: _Optional[bool] = ..., wait_for_tokens: _Optional[bool] = ..., pooling: _Optional[_Union[_common_pb2.Pooling, str]] = ...) -> None: ...

class ResumedChoice(_message.Message):
    __slots__ = ("choice_index", "token_ids")
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    choice_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, choice_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("choice_index", "tokens", "finished", "prompt_logprobs")
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    choice_index: int
    tokens: TokensGenerated
    finished: ChoiceFinished
    prompt_logprobs: _common_pb2.PromptLogprobs
    def __init__(self, choice_index: _Optional[int] = ..., tokens: _Optional[_Union[TokensGenerated, _Mapping]] = ..., finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class TokensGenerated(_message.Message):
    __slots__ = ("first_index", "token_ids", "logprobs")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, first_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("reason", "stop_token_id", "num_output_tokens", "num_cached_tokens", "error_message", "timeline", "embedding", "error_param")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_PARAM_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    stop_token_id: int
    num_output_tokens: int
    num_cached_tokens: int
    error_message: str
    timeline: Timeline
    embedding: bytes
    error_param: str
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., error_message: _Optional[str] = ..., timeline: _Optional[_Union[Timeline, _Mapping]] = ..., embedding: _Optional[bytes] = ..., error_param: _Optional[str] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("waits", "runs", "first_token_s", "finished_s")
    WAITS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    FINISHED_S_FIELD_NUMBER: _ClassVar[int]
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    first_token_s: float
    finished_s: float
    def __init__(self, waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., first_token_s: _Optional[float] = ..., finished_s: _Optional[float] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "start_s", "end_s", "num_ahead", "behind_request_ids", "num_missing_blocks")
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    BEHIND_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    reason: WaitReason
    start_s: float
    end_s: float
    num_ahead: int
    behind_request_ids: _containers.RepeatedScalarFieldContainer[str]
    num_missing_blocks: int
    def __init__(self, reason: _Optional[_Union[WaitReason, str]] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., num_ahead: _Optional[int] = ..., behind_request_ids: _Optional[_Iterable[str]] = ..., num_missing_blocks: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("worker_id", "start_s", "end_s", "num_cached_tokens", "num_steps", "num_held_steps", "preempted_by", "worker_lost")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_STEPS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_BY_FIELD_NUMBER: _ClassVar[int]
    WORKER_LOST_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    start_s: float
    end_s: float
    num_cached_tokens: int
    num_steps: int
    num_held_steps: int
    preempted_by: str
    worker_lost: bool
    def __init__(self, worker_id: _Optional[str] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., num_cached_tokens: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_held_steps: _Optional[int] = ..., preempted_by: _Optional[str] = ..., worker_lost: _Optional[bool] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("start", "cancel")
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    start: StartStream
    cancel: CancelStream
    def __init__(self, start: _Optional[_Union[StartStream, _Mapping]] = ..., cancel: _Optional[_Union[CancelStream, _Mapping]] = ...) -> None: ...

class StartStream(_message.Message):
    __slots__ = ("stream_id", "request")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    request: GenerateRequest
    def __init__(self, stream_id: _Optional[int] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class CancelStream(_message.Message):
    __slots__ = ("stream_id", "choice_indexes")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEXES_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    choice_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream_id: _Optional[int] = ..., choice_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("stream_ids", "choice_indexes", "first_indexes", "num_tokens", "token_ids", "logprob_entries", "logprobs", "finished", "refused", "prompt_logprobs")
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEXES_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEXES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    choice_indexes: _containers.RepeatedScalarFieldContainer[int]
    first_indexes: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_entries: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    finished: _containers.RepeatedCompositeFieldContainer[StreamFinished]
    refused: _containers.RepeatedCompositeFieldContainer[StreamRefused]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[StreamPromptLogprobs]
    def __init__(self, stream_ids: _Optional[_Iterable[int]] = ..., choice_indexes: _Optional[_Iterable[int]] = ..., first_indexes: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprob_entries: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[StreamFinished, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[StreamRefused, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[StreamPromptLogprobs, _Mapping]]] = ...) -> None: ...

class StreamPromptLogprobs(_message.Message):
    __slots__ = ("stream_id", "logprobs")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    logprobs: _common_pb2.PromptLogprobs
    def __init__(self, stream_id: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class StreamFinished(_message.Message):
    __slots__ = ("stream_id", "choice_index", "finished")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    choice_index: int
    finished: ChoiceFinished
    def __init__(self, stream_id: _Optional[int] = ..., choice_index: _Optional[int] = ..., finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ...) -> None: ...

class StreamRefused(_message.Message):
    __slots__ = ("stream_id", "status", "message", "param")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    status: int
    message: str
    param: str
    def __init__(self, stream_id: _Optional[int] = ..., status: _Optional[int] = ..., message: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class GetTimelineRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetTimelineResponse(_message.Message):
    __slots__ = ("timelines",)
    TIMELINES_FIELD_NUMBER: _ClassVar[int]
    timelines: _containers.RepeatedCompositeFieldContainer[Timeline]
    def __init__(self, timelines: _Optional[_Iterable[_Union[Timeline, _Mapping]]] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "timeout_s")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    timeout_s: float
    def __init__(self, worker_id: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "choice_indexes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEXES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., choice_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("version", "model", "workers", "num_running", "num_waiting", "max_num_seqs", "max_num_batched_tokens", "draining")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    version: str
    model: _common_pb2.ModelInfo
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    num_running: int
    num_waiting: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draining: bool
    def __init__(self, version: _Optional[str] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "epoch", "cache", "num_free_blocks", "num_running", "draining")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    cache: _common_pb2.CacheInfo
    num_free_blocks: int
    num_running: int
    draining: bool
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., cache: _Optional[_Union[_common_pb2.CacheInfo, _Mapping]] = ..., num_free_blocks: _Optional[int] = ..., num_running: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...
