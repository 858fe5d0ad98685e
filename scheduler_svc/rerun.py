"""Does the core still decide as in a recording? Runs a new one through the calls and compares what it answers."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from google.protobuf.message import DecodeError

from pageloom import __version__, wire
from pageloom.errors import StartupError
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.wire import record
from pageloom.wire.record import RecordedCall, RecordingHeader
from scheduler_svc.core import Limits, Scheduler, Stats
from scheduler_svc.recording import RecordingScheduler

# Calls before a difference that are shown with it.
_NUM_CALLS_SHOWN = 12


class Recording:
    """The header and the calls of a recording in a file. Raises StartupError if it is none, or damaged."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        # Its last message was cut off: the process ended while it wrote.
        self.torn = False
        self.header = self._header()

    @property
    def limits(self) -> Limits:
        """Raises StartupError if it names a policy that this version does not have."""
        fields = record.limits_from_proto(self.header)
        try:
            fields["scheduling_policy"] = SchedulingPolicy(fields["scheduling_policy"])
            fields["placement"] = Placement(fields["placement"])
        except ValueError as error:
            raise StartupError(f"{self._name} cannot be replayed by pageloom {__version__}: {error}") from None
        return Limits(**fields)

    def calls(self) -> Iterator[RecordedCall]:
        """Once, in order; `torn` is known afterwards."""
        while True:
            at = self._file.tell()
            try:
                data = record.read_delimited(self._file)
                if data is None:
                    return
                call = RecordedCall.FromString(data)
            except EOFError:
                self.torn = True
                return
            except (ValueError, DecodeError):
                raise StartupError(f"{self._name} is damaged: there is no message at byte {at}") from None
            yield call

    def _header(self) -> RecordingHeader:
        try:
            header = RecordingHeader.FromString(record.read_delimited(self._file) or b"")
        except (EOFError, ValueError, DecodeError):
            header = RecordingHeader()
        if header.format != record.FORMAT:
            raise StartupError(f"{self._name} is not a recording of pageloom scheduler --record")
        if header.format_version != record.FORMAT_VERSION:
            raise StartupError(
                f"{self._name} is of recording format {header.format_version}, written by pageloom "
                f"{header.pageloom_version}; this is {__version__}, which reads format {record.FORMAT_VERSION}"
            )
        return header


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first call whose outcome was another. `num_plans` is that of the plans before it."""

    num_plans: int
    recorded: RecordedCall
    replayed: RecordedCall
    calls_before: tuple[RecordedCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How far it went, and how it came out. `first_s` and `last_s` are of the core's clock."""

    num_calls: Counter[str]
    num_plans: int
    num_tokens: int
    num_endings: int
    first_s: float
    last_s: float
    stats: Stats
    difference: Difference | None


def rerun(calls: Iterator[RecordedCall], limits: Limits, until: int | None = None) -> Rerun:
    """Runs a new core through recorded calls, to the first other outcome or until so many plans are made."""
    answered: list[RecordedCall] = []

    def take(call: RecordedCall) -> bool:
        answered.append(call)
        return True

    core = RecordingScheduler(limits, take)
    num_calls: Counter[str] = Counter()
    num_plans = num_tokens = num_endings = 0
    first_s = last_s = 0.0
    before: deque[RecordedCall] = deque(maxlen=_NUM_CALLS_SHOWN)
    difference = None
    for call in calls:
        first_s, last_s = first_s if num_calls else call.now_s, call.now_s
        num_calls[call.WhichOneof("call") or "unknown"] += 1
        answered.clear()
        # What it raises is an outcome like any other.
        with contextlib.suppress(Exception):
            call_again(core, call)
        (again,) = answered or (RecordedCall(now_s=call.now_s),)
        if again.outcome != call.outcome:
            difference = Difference(num_plans=num_plans, recorded=call, replayed=again, calls_before=tuple(before))
            break
        before.append(call)
        num_plans += call.outcome.HasField("plan")
        num_tokens += call.outcome.num_tokens
        num_endings += len(call.outcome.endings)
        if num_plans == until:
            break
    return Rerun(
        num_calls=num_calls,
        num_plans=num_plans,
        num_tokens=num_tokens,
        num_endings=num_endings,
        first_s=first_s,
        last_s=last_s,
        stats=core.stats(),
        difference=difference,
    )


def call_again(core: Scheduler, call: RecordedCall) -> None:
    """Makes a recorded call. Raises what the core raises, and ValueError if the call is of no known kind."""
    now = call.now_s
    match call.WhichOneof("call"):
        case "attach":
            core.attach(wire.hello_from_proto(call.attach.hello), call.attach.epoch, now)
        case "drain":
            core.drain(call.drain.worker_id, now)
        case "abandon":
            core.abandon(call.abandon.worker_id, now)
        case "submit":
            core.submit(wire.generate_request_from_proto(call.submit), now)
        case "cancel":
            core.cancel(call.cancel.request_id, tuple(call.cancel.choice_indexes), now=now)
        case "end_all":
            core.end_all(call.end_all.reason, now)
        case "expire":
            core.expire(now)
        case "plan":
            core.plan(call.plan.worker_id, now)
        case "commit":
            core.commit(call.commit.worker_id, wire.result_from_proto(call.commit.result), now)
        case unknown:
            raise ValueError(f"a call of kind {unknown}")
