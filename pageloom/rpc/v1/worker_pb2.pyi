from pageloom.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "step_result", "heartbeat", "leaving", "grammar_prepared")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_RESULT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_PREPARED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step_result: StepResult
    heartbeat: Heartbeat
    leaving: Leaving
    grammar_prepared: GrammarPrepared
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step_result: _Optional[_Union[StepResult, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., grammar_prepared: _Optional[_Union[GrammarPrepared, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "plan", "drain", "prepare_grammar")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PREPARE_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    plan: BatchPlan
    drain: Drain
    prepare_grammar: PrepareGrammar
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., plan: _Optional[_Union[BatchPlan, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., prepare_grammar: _Optional[_Union[PrepareGrammar, _Mapping]] = ...) -> None: ...

class PrepareGrammar(_message.Message):
    __slots__ = ("number", "grammar")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    number: int
    grammar: str
    def __init__(self, number: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class GrammarPrepared(_message.Message):
    __slots__ = ("number", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: str
    def __init__(self, number: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "boot_id", "protocol_version", "model", "cache", "max_num_seqs", "max_num_batched_tokens", "highest_epoch", "max_num_draft_tokens", "num_stages")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    boot_id: str
    protocol_version: int
    model: _common_pb2.ModelInfo
    cache: _common_pb2.CacheInfo
    max_num_seqs: int
    max_num_batched_tokens: int
    highest_epoch: int
    max_num_draft_tokens: int
    num_stages: int
    def __init__(self, worker_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., cache: _Optional[_Union[_common_pb2.CacheInfo, _Mapping]] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., highest_epoch: _Optional[int] = ..., max_num_draft_tokens: _Optional[int] = ..., num_stages: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "heartbeat_interval_s", "max_num_steps_in_flight")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    heartbeat_interval_s: float
    max_num_steps_in_flight: int
    def __init__(self, epoch: _Optional[int] = ..., heartbeat_interval_s: _Optional[float] = ..., max_num_steps_in_flight: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("stop",)
    STOP_FIELD_NUMBER: _ClassVar[int]
    stop: bool
    def __init__(self, stop: _Optional[bool] = ...) -> None: ...

class BatchPlan(_message.Message):
    __slots__ = ("epoch", "step", "snapshot", "released_slots", "admissions", "grown_slots", "grown_counts", "grown_block_ids", "chunk_slots", "chunk_lens", "held_slots", "copy_source_block_ids", "copy_target_block_ids", "draft_slots", "draft_limits")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    GROWN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GROWN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GROWN_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LENS_FIELD_NUMBER: _ClassVar[int]
    HELD_SLOTS_FIELD_NUMBER: _ClassVar[int]
    COPY_SOURCE_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    COPY_TARGET_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LIMITS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    snapshot: bool
    released_slots: _containers.RepeatedScalarFieldContainer[int]
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    grown_slots: _containers.RepeatedScalarFieldContainer[int]
    grown_counts: _containers.RepeatedScalarFieldContainer[int]
    grown_block_ids: _containers.RepeatedScalarFieldContainer[int]
    chunk_slots: _containers.RepeatedScalarFieldContainer[int]
    chunk_lens: _containers.RepeatedScalarFieldContainer[int]
    held_slots: _containers.RepeatedScalarFieldContainer[int]
    copy_source_block_ids: _containers.RepeatedScalarFieldContainer[int]
    copy_target_block_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_slots: _containers.RepeatedScalarFieldContainer[int]
    draft_limits: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., snapshot: _Optional[bool] = ..., released_slots: _Optional[_Iterable[int]] = ..., admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., grown_slots: _Optional[_Iterable[int]] = ..., grown_counts: _Optional[_Iterable[int]] = ..., grown_block_ids: _Optional[_Iterable[int]] = ..., chunk_slots: _Optional[_Iterable[int]] = ..., chunk_lens: _Optional[_Iterable[int]] = ..., held_slots: _Optional[_Iterable[int]] = ..., copy_source_block_ids: _Optional[_Iterable[int]] = ..., copy_target_block_ids: _Optional[_Iterable[int]] = ..., draft_slots: _Optional[_Iterable[int]] = ..., draft_limits: _Optional[_Iterable[int]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("slot", "token_ids", "num_prompt_tokens", "num_computed_tokens", "block_ids", "sampling", "choice_index", "first_scored_token", "pooling")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_SCORED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    slot: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    choice_index: int
    first_scored_token: int
    pooling: _common_pb2.Pooling
    def __init__(self, slot: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., choice_index: _Optional[int] = ..., first_scored_token: _Optional[int] = ..., pooling: _Optional[_Union[_common_pb2.Pooling, str]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("epoch", "step", "slots", "token_ids", "logprob_slots", "logprobs", "failed_slots", "failure_messages", "duration_us", "scored_slots", "prompt_logprobs", "pooled_slots", "embeddings", "failure_params", "token_counts", "draft_counts", "draft_limit", "undrafted_duration_us")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_SLOTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    SCORED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POOLED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_PARAMS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNDRAFTED_DURATION_US_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_slots: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    failed_slots: _containers.RepeatedScalarFieldContainer[int]
    failure_messages: _containers.RepeatedScalarFieldContainer[str]
    duration_us: int
    scored_slots: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PromptLogprobs]
    pooled_slots: _containers.RepeatedScalarFieldContainer[int]
    embeddings: _containers.RepeatedScalarFieldContainer[bytes]
    failure_params: _containers.RepeatedScalarFieldContainer[str]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    draft_counts: _containers.RepeatedScalarFieldContainer[int]
    draft_limit: int
    undrafted_duration_us: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprob_slots: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., failed_slots: _Optional[_Iterable[int]] = ..., failure_messages: _Optional[_Iterable[str]] = ..., duration_us: _Optional[int] = ..., scored_slots: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.PromptLogprobs, _Mapping]]] = ..., pooled_slots: _Optional[_Iterable[int]] = ..., embeddings: _Optional[_Iterable[bytes]] = ..., failure_params: _Optional[_Iterable[str]] = ..., token_counts: _Optional[_Iterable[int]] = ..., draft_counts: _Optional[_Iterable[int]] = ..., draft_limit: _Optional[int] = ..., undrafted_duration_us: _Optional[int] = ...) -> None: ...
