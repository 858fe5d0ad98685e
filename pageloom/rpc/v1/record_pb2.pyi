from pageloom.rpc.v1 import engine_pb2 as _engine_pb2
from pageloom.rpc.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordingHeader(_message.Message):
    __slots__ = ("format", "format_version", "pageloom_version", "limits", "unix_offset_s")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PAGELOOM_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    UNIX_OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    format: str
    format_version: int
    pageloom_version: str
    limits: RecordedLimits
    unix_offset_s: float
    def __init__(self, format: _Optional[str] = ..., format_version: _Optional[int] = ..., pageloom_version: _Optional[str] = ..., limits: _Optional[_Union[RecordedLimits, _Mapping]] = ..., unix_offset_s: _Optional[float] = ...) -> None: ...

class RecordedLimits(_message.Message):
    __slots__ = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_seqs", "enable_prefix_caching", "max_num_lost_runs", "max_num_steps_in_flight", "scheduling_policy", "placement", "priority_ageing_s")
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_QUEUED_SEQS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_LOST_RUNS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_POLICY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_AGEING_S_FIELD_NUMBER: _ClassVar[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_seqs: int
    enable_prefix_caching: bool
    max_num_lost_runs: int
    max_num_steps_in_flight: int
    scheduling_policy: str
    placement: str
    priority_ageing_s: float
    def __init__(self, max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_num_queued_seqs: _Optional[int] = ..., enable_prefix_caching: _Optional[bool] = ..., max_num_lost_runs: _Optional[int] = ..., max_num_steps_in_flight: _Optional[int] = ..., scheduling_policy: _Optional[str] = ..., placement: _Optional[str] = ..., priority_ageing_s: _Optional[float] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("now_s", "attach", "drain", "abandon", "submit", "cancel", "end_all", "expire", "plan", "commit", "outcome")
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    END_ALL_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    now_s: float
    attach: RecordedAttach
    drain: RecordedDrain
    abandon: RecordedAbandon
    submit: _engine_pb2.GenerateRequest
    cancel: _engine_pb2.CancelRequest
    end_all: RecordedEndAll
    expire: RecordedExpire
    plan: RecordedPlan
    commit: RecordedCommit
    outcome: RecordedOutcome
    def __init__(self, now_s: _Optional[float] = ..., attach: _Optional[_Union[RecordedAttach, _Mapping]] = ..., drain: _Optional[_Union[RecordedDrain, _Mapping]] = ..., abandon: _Optional[_Union[RecordedAbandon, _Mapping]] = ..., submit: _Optional[_Union[_engine_pb2.GenerateRequest, _Mapping]] = ..., cancel: _Optional[_Union[_engine_pb2.CancelRequest, _Mapping]] = ..., end_all: _Optional[_Union[RecordedEndAll, _Mapping]] = ..., expire: _Optional[_Union[RecordedExpire, _Mapping]] = ..., plan: _Optional[_Union[RecordedPlan, _Mapping]] = ..., commit: _Optional[_Union[RecordedCommit, _Mapping]] = ..., outcome: _Optional[_Union[RecordedOutcome, _Mapping]] = ...) -> None: ...

class RecordedAttach(_message.Message):
    __slots__ = ("hello", "epoch")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    hello: _worker_pb2.Hello
    epoch: int
    def __init__(self, hello: _Optional[_Union[_worker_pb2.Hello, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class RecordedDrain(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RecordedAbandon(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RecordedEndAll(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RecordedExpire(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordedPlan(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RecordedCommit(_message.Message):
    __slots__ = ("worker_id", "result")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    result: _worker_pb2.StepResult
    def __init__(self, worker_id: _Optional[str] = ..., result: _Optional[_Union[_worker_pb2.StepResult, _Mapping]] = ...) -> None: ...

class RecordedOutcome(_message.Message):
    __slots__ = ("plan", "endings", "keys", "num_tokens", "tokens_crc32", "ignored", "error", "num_scored_tokens")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ENDINGS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_CRC32_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    plan: _worker_pb2.BatchPlan
    endings: _containers.RepeatedCompositeFieldContainer[RecordedEnding]
    keys: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: int
    tokens_crc32: int
    ignored: bool
    error: RecordedError
    num_scored_tokens: int
    def __init__(self, plan: _Optional[_Union[_worker_pb2.BatchPlan, _Mapping]] = ..., endings: _Optional[_Iterable[_Union[RecordedEnding, _Mapping]]] = ..., keys: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[int] = ..., tokens_crc32: _Optional[int] = ..., ignored: _Optional[bool] = ..., error: _Optional[_Union[RecordedError, _Mapping]] = ..., num_scored_tokens: _Optional[int] = ...) -> None: ...

class RecordedEnding(_message.Message):
    __slots__ = ("request_id", "choice_index", "finished")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    finished: _engine_pb2.ChoiceFinished
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., finished: _Optional[_Union[_engine_pb2.ChoiceFinished, _Mapping]] = ...) -> None: ...

class RecordedError(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
