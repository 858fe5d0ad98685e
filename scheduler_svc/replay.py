"""`pageloom replay`: runs a recording again and says where the core decided otherwise, if it did."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from pageloom import __version__
from pageloom.config import ReplayConfig
from pageloom.errors import StartupError
from pageloom.wire.record import RecordedCall
from scheduler_svc.core import Stats
from scheduler_svc.rerun import Difference, Recording, Rerun, rerun

# Of outcomes that differ in more fields than this, the rest is not shown.
_MAX_DIFFERENCES = 40


def main(config: ReplayConfig) -> int:
    """Prints how the replay came out. The exit code: 0 identical, 1 different, 2 not a recording that can be read."""
    try:
        with open(config.path, "rb") as file:
            recording = Recording(file, config.path)
            outcome = rerun(recording.calls(), recording.limits, config.until)
    except OSError as error:
        return _complain(f"cannot read {config.path}: {error.strerror}")
    except StartupError as error:
        return _complain(error.message)
    for line in _report(recording, outcome):
        print(line)
    return 0 if outcome.difference is None else 1


def _complain(message: str) -> int:
    print(f"pageloom replay: {message}", file=sys.stderr)
    return 2


def _report(recording: Recording, outcome: Rerun) -> Iterator[str]:
    header = recording.header
    yield f"recorded by pageloom {header.pageloom_version}, replayed by {__version__}"
    counts = ", ".join(f"{count} {name}" for name, count in sorted(outcome.num_calls.items()))
    yield f"calls: {outcome.num_calls.total()} over {outcome.last_s - outcome.first_s:.3f} s ({counts})"
    yield f"plans: {outcome.num_plans}, tokens: {outcome.num_tokens}, endings: {outcome.num_endings}"
    yield from _state(outcome.stats)
    if recording.torn:
        yield "the last message is cut off: the scheduler was killed while it wrote"
    if outcome.difference is None:
        yield "identical"
    else:
        yield from _difference(outcome.difference, outcome.first_s, header.unix_offset_s)


def _state(stats: Stats) -> Iterator[str]:
    yield f"at the end: {stats.num_running} running, {stats.num_waiting} waiting, {stats.num_preemptions} preemptions"
    for worker in stats.workers:
        yield (
            f"  worker {worker.worker_id}: {worker.num_running} running, {worker.num_free_blocks} of "
            f"{worker.cache.num_blocks} blocks free, {worker.num_cached_blocks} cached"
        )


def _difference(difference: Difference, first_s: float, unix_offset_s: float) -> Iterator[str]:
    call = difference.recorded
    clock = datetime.fromtimestamp(call.now_s + unix_offset_s, UTC).isoformat(sep=" ", timespec="milliseconds")
    yield ""
    yield f"DIFFERENT after {difference.num_plans} plans, at {call.now_s - first_s:.6f} s ({clock}), in the call"
    yield f"  {describe(call)}"
    yield ""
    for index, (name, one, other) in enumerate(differences(call.outcome, difference.replayed.outcome)):
        if index == _MAX_DIFFERENCES:
            yield "  ... and more"
            break
        yield f"  {name}"
        yield f"    recorded: {one}"
        yield f"    replayed: {other}"
    yield ""
    yield "The calls before it:"
    for earlier in difference.calls_before:
        yield f"  {earlier.now_s - first_s:.6f} s  {describe(earlier)}"


def describe(call: RecordedCall) -> str:
    """A call in one line, without its token ids."""
    outcome = call.outcome
    match call.WhichOneof("call"):
        case "attach":
            hello = call.attach.hello
            text = (
                f"attach {hello.worker_id}: epoch {call.attach.epoch}, {hello.cache.num_blocks} blocks of "
                f"{hello.cache.block_size}, {hello.max_num_seqs} slots, {hello.max_num_batched_tokens} tokens a step"
            )
        case "submit":
            text = _described_request(call)
        case "cancel":
            which = f"choices {list(call.cancel.choice_indexes)}" if call.cancel.choice_indexes else "all choices"
            text = f"cancel {call.cancel.request_id}: {which}"
        case "plan":
            text = f"plan {call.plan.worker_id}: {_described_plan(call)}"
        case "commit":
            result = call.commit.result
            text = f"commit {call.commit.worker_id}: step {result.step} of epoch {result.epoch}, "
            text += "ignored" if outcome.ignored else f"{len(result.token_ids)} tokens drawn"
        case "drain" | "abandon" as name:
            text = f"{name} {getattr(call, name).worker_id}"
        case name:
            text = str(name)
    ended = ", ".join(f"{ending.request_id}/{ending.choice_index}" for ending in outcome.endings)
    text += f"; ended: {ended}" if ended else ""
    return text + (f"; raised {outcome.error.type}: {outcome.error.message}" if outcome.HasField("error") else "")


def _described_request(call: RecordedCall) -> str:
    request = call.submit
    text = f"submit {request.request_id}: {len(request.prompt_token_ids)} prompt tokens"
    if request.pooling:
        return f"{text}, pooled"
    if request.sampling.HasField("max_tokens"):
        text += f", max_tokens {request.sampling.max_tokens}"
    for name in ("n", "priority", "tenant", "deadline_s", "wait_for_tokens"):
        value = getattr(request, name)
        text += f", {name} {value}" if value else ""
    return text


def _described_plan(call: RecordedCall) -> str:
    if not call.outcome.HasField("plan"):
        return "none"
    plan = call.outcome.plan
    counts = {
        "admitted": len(plan.admissions),
        "chunks": len(plan.chunk_slots),
        "released": len(plan.released_slots),
        "held": len(plan.held_slots),
        "blocks grown": len(plan.grown_block_ids),
        "blocks copied": len(plan.copy_target_block_ids),
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"step {plan.step} of epoch {plan.epoch}" + (f", {said}" if said else "")


def differences(recorded: Message, replayed: Message, path: str = "") -> Iterator[tuple[str, object, object]]:
    """The fields in which two messages of one type differ: path, value in the one, value in the other.

    Absent messages, and entries of the shorter of two lists, are None.
    """
    for field in recorded.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        one, other = getattr(recorded, field.name), getattr(replayed, field.name)
        if one == other:
            continue
        if field.message_type is None:
            yield name, _plain(one), _plain(other)
        elif field.is_repeated and not isinstance(one, Sequence):
            yield name, dict(one), dict(other)
        elif field.is_repeated:
            for index in range(max(len(one), len(other))):
                yield from _entry_differences(one[index : index + 1], other[index : index + 1], f"{name}[{index}]")
        else:
            yield from _entry_differences(
                [one] * recorded.HasField(field.name), [other] * replayed.HasField(field.name), name
            )


def _entry_differences(one: Sequence[Any], other: Sequence[Any], name: str) -> Iterator[tuple[str, object, object]]:
    """Of two messages, either of which may be missing."""
    if one and other:
        yield from differences(one[0], other[0], f"{name}.")
    else:
        yield name, _one_line(one[0]) if one else None, _one_line(other[0]) if other else None


def _plain(value: Any) -> object:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _one_line(message: Message) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    sys.exit(main(ReplayConfig.from_json(sys.argv[1])))
