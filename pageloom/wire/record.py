"""The messages of a recording: its header, each call of the scheduler's core, what the core answered.

The functions that make a call's message have the parameters of the core's method.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from pageloom.outputs import ChoiceFinished
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2, record_pb2
from pageloom.wire.engine import finished_to_proto, generate_request_to_proto
from pageloom.wire.worker import hello_to_proto, plan_to_proto, result_to_proto

FORMAT = "pageloom recording"
# Raised whenever the meaning of a recording changes.
FORMAT_VERSION = 1
# Above the largest message that gRPC lets in: a longer one is no message but a damaged length.
MAX_MESSAGE_BYTES = 1 << 30

RecordedCall = record_pb2.RecordedCall
RecordingHeader = record_pb2.RecordingHeader


def header_to_proto(limits: dict[str, Any], *, pageloom_version: str, unix_offset_s: float) -> RecordingHeader:
    """`limits` has the fields of RecordedLimits."""
    return RecordingHeader(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        pageloom_version=pageloom_version,
        limits=record_pb2.RecordedLimits(**limits),
        unix_offset_s=unix_offset_s,
    )


def limits_from_proto(header: RecordingHeader) -> dict[str, Any]:
    return {field.name: getattr(header.limits, field.name) for field in header.limits.DESCRIPTOR.fields}


def attach_to_proto(hello: WorkerHello, epoch: int, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, attach=record_pb2.RecordedAttach(hello=hello_to_proto(hello), epoch=epoch))


def drain_to_proto(worker_id: str, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, drain=record_pb2.RecordedDrain(worker_id=worker_id))


def abandon_to_proto(worker_id: str, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, abandon=record_pb2.RecordedAbandon(worker_id=worker_id))


def submit_to_proto(request: GenerateRequest, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, submit=generate_request_to_proto(request))


def cancel_to_proto(request_id: str, choice_indexes: tuple[int, ...] = (), *, now: float) -> RecordedCall:
    request = engine_pb2.CancelRequest(request_id=request_id, choice_indexes=choice_indexes)
    return RecordedCall(now_s=now, cancel=request)


def end_all_to_proto(reason: str, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, end_all=record_pb2.RecordedEndAll(reason=reason))


def expire_to_proto(now: float) -> RecordedCall:
    return RecordedCall(now_s=now, expire=record_pb2.RecordedExpire())


def plan_call_to_proto(worker_id: str, now: float) -> RecordedCall:
    return RecordedCall(now_s=now, plan=record_pb2.RecordedPlan(worker_id=worker_id))


def commit_to_proto(worker_id: str, result: StepResult, now: float) -> RecordedCall:
    commit = record_pb2.RecordedCommit(worker_id=worker_id, result=result_to_proto(result))
    return RecordedCall(now_s=now, commit=commit)


def put_plan(call: RecordedCall, plan: BatchPlan) -> None:
    """Sets a plan call's outcome."""
    call.outcome.plan.CopyFrom(plan_to_proto(plan))


def put_endings(call: RecordedCall, endings: Iterable[tuple[str, ChoiceFinished]]) -> None:
    """Adds the choices that a call has ended, with their request ids."""
    for request_id, event in endings:
        call.outcome.endings.add(
            request_id=request_id, choice_index=event.choice_index, finished=finished_to_proto(event)
        )


def delimited(message: RecordedCall | RecordingHeader) -> bytes:
    """A message after its length in bytes, as a base-128 varint."""
    payload = message.SerializeToString()
    length, prefix = len(payload), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + payload


def read_delimited(file: IO[bytes]) -> bytes | None:
    """The next message's bytes; None at the end of the file.

    Raises EOFError if the file ends within it, and ValueError if what is there cannot be the length of one.
    """
    length = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            if shift == 0:
                return None
            raise EOFError
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] <= 0x7F:
            break
        if shift > 28:
            raise ValueError("not the length of a message")
    if length > MAX_MESSAGE_BYTES:
        raise ValueError("not the length of a message")
    payload = file.read(length)
    if len(payload) < length:
        raise EOFError
    return payload
