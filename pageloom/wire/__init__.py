"""Dataclass <-> protobuf, both ways, for every message. The only place that knows both."""

from pageloom.wire.common import (
    sampling_from_proto,
    sampling_to_proto,
)
from pageloom.wire.engine import (
    engine_info_from_proto,
    engine_info_to_proto,
    event_from_proto,
    event_to_proto,
    finished_from_proto,
    finished_to_proto,
    generate_request_from_proto,
    generate_request_to_proto,
    timeline_from_proto,
    timeline_to_proto,
)
from pageloom.wire.session import (
    SessionEvents,
    StreamFinished,
    StreamRefused,
    StreamTokens,
    TokensOfStream,
    cancel_stream_to_proto,
    session_response_from_proto,
    session_response_to_proto,
    start_stream_to_proto,
)
from pageloom.wire.worker import (
    PROTOCOL_VERSION,
    hello_from_proto,
    hello_to_proto,
    plan_from_proto,
    plan_to_proto,
    result_from_proto,
    result_to_proto,
)

__all__ = [
    "PROTOCOL_VERSION",
    "SessionEvents",
    "StreamFinished",
    "StreamRefused",
    "StreamTokens",
    "TokensOfStream",
    "cancel_stream_to_proto",
    "engine_info_from_proto",
    "engine_info_to_proto",
    "event_from_proto",
    "event_to_proto",
    "finished_from_proto",
    "finished_to_proto",
    "generate_request_from_proto",
    "generate_request_to_proto",
    "hello_from_proto",
    "hello_to_proto",
    "plan_from_proto",
    "plan_to_proto",
    "result_from_proto",
    "result_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
    "session_response_from_proto",
    "session_response_to_proto",
    "start_stream_to_proto",
    "timeline_from_proto",
    "timeline_to_proto",
]
