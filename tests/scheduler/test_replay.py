"""`--record` and `pageloom replay`: what is recorded replays alike, what differs is shown, what is broken is said."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from pageloom.client import EngineClient
from pageloom.config import ReplayConfig, SchedulerConfig
from pageloom.errors import Overloaded, StartupError
from pageloom.plan import StepResult
from pageloom.service_process import ServiceProcess
from pageloom.status import SchedulerReady
from pageloom.wire import record
from pageloom.wire.record import RecordedCall
from scheduler_svc import replay
from scheduler_svc.core import Scheduler, policy
from scheduler_svc.recording import RecordingFile, RecordingScheduler, recording_header
from scheduler_svc.rerun import Recording
from tests.scheduler.core.builders import make_limits, make_request
from tests.support.paper_model import paper_hello
from tests.support.paper_stack import LIMITS, PaperStack, paper_stack
from tests.support.serving import free_port


def pageloom(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pageloom", *arguments], capture_output=True, text=True, timeout=60)


class Replayed(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Replay = Callable[..., Replayed]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Replay:
    """What `pageloom replay` becomes, without the start of two interpreters."""

    def run_in_process(path: Path, until: int | None = None) -> Replayed:
        capsys.readouterr()
        code = replay.main(ReplayConfig(path=str(path), until=until))
        return Replayed(code, *capsys.readouterr())

    return run_in_process


def drive(core: Scheduler) -> None:
    """A short life with an error, a cancel, an end, a result that is late, and a worker that leaves."""
    core.attach(paper_hello("a", num_blocks=16), 1, 100.0)
    core.submit(make_request("short", prompt=6, max_tokens=2, tenant="x"), 100.5)
    core.submit(make_request("long", prompt=30, n=2, max_tokens=30, deadline_s=8.0), 101.0)
    with pytest.raises(Overloaded):
        core.submit(make_request("many", n=98), 101.5)
    for step in (1, 2, 3):
        plan = core.plan("a", 102.0 + step)
        assert plan is not None
        slots = tuple(core.groups["a"].in_flight[0].drawing_slots.tolist())
        core.commit("a", StepResult(epoch=1, step=step, slots=slots, token_ids=(7,) * len(slots)), 102.5 + step)
    core.commit("a", StepResult(epoch=1, step=1), 106.0)
    core.cancel("long", (1,), now=107.0)
    core.expire(109.5)
    core.drain("a", 110.0)
    core.abandon("a", 111.0)
    core.end_all("over", 112.0)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "core.rec"
    limits = make_limits()
    file = RecordingFile(path, limits)
    drive(RecordingScheduler(limits, file.put))
    file.close()
    return path


def calls(path: Path) -> list[RecordedCall]:
    with open(path, "rb") as file:
        return list(Recording(file, str(path)).calls())


def rewrite(path: Path, change: Callable[[list[RecordedCall]], object]) -> None:
    """Writes a recording anew with other calls."""
    changed = calls(path)
    change(changed)
    header = record.delimited(recording_header(make_limits()))
    path.write_bytes(header + b"".join(map(record.delimited, changed)))


def first_plan(recorded_calls: list[RecordedCall]) -> RecordedCall:
    return next(call for call in recorded_calls if call.outcome.HasField("plan"))


class TestIdentical:
    def test_the_command_says_so(self, recorded: Path):
        done = pageloom("replay", str(recorded), "--until", "99")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[-1] == "identical"
        assert "plans: 3, tokens: 7, endings: 3" in lines
        assert any(line.startswith("calls: 16 over 12.000 s (1 abandon, 1 attach") for line in lines)

    def test_until_stops_after_so_many_plans_and_shows_the_state_then(self, recorded: Path, run: Replay):
        done = run(recorded, until=2)
        assert done.returncode == 0
        assert "plans: 2, tokens: 2, endings: 0" in done.stdout
        assert "  worker a: 3 running, 5 of 16 blocks free, 8 cached" in done.stdout

    def test_every_kind_of_call_is_there_and_what_it_answered(self, recorded: Path):
        kinds = [call.WhichOneof("call") for call in calls(recorded)]
        assert set(kinds) == {
            "attach", "submit", "plan", "commit", "cancel", "expire", "drain", "abandon", "end_all",
        }  # fmt: skip
        refused = next(call for call in calls(recorded) if call.outcome.HasField("error"))
        assert refused.outcome.error.type == "Overloaded"
        late = [call for call in calls(recorded) if call.outcome.ignored]
        assert [call.now_s for call in late] == [106.0]

    def test_a_torn_last_message_is_no_error(self, recorded: Path, run: Replay):
        with open(recorded, "ab") as file:
            file.truncate(recorded.stat().st_size - 3)
        done = run(recorded)
        assert done.returncode == 0
        assert "the last message is cut off" in done.stdout

    def test_every_method_of_the_core_that_changes_it_is_recorded(self):
        questions = {"model", "last_step_facts", "num_in_flight", "is_idle", "timelines", "stats"}
        methods = {name for name in vars(Scheduler) if not name.startswith("_")}
        assert methods - questions == {name for name in vars(RecordingScheduler) if not name.startswith("_")}

    def test_the_header_has_every_limit(self):
        names = {field.name for field in recording_header(make_limits()).limits.DESCRIPTOR.fields}
        assert names == {field.name for field in dataclasses.fields(make_limits())}

    async def test_a_scheduler_with_workers_that_come_and_go(self, tmp_path: Path, run: Replay):
        path = tmp_path / "stack.rec"
        file = RecordingFile(path, LIMITS)
        async with paper_stack(core=RecordingScheduler(LIMITS, file.put)) as stack:
            async with stack.attached("one", step_s=0.005):
                asking = [asyncio.create_task(ask(stack, f"r{index}", n=1 + index % 2)) for index in range(4)]
                await asyncio.sleep(0.1)
            async with stack.attached("two"):
                await asyncio.gather(*asking)
        file.close()
        done = run(path)
        assert done.returncode == 0, done.stdout
        assert "identical" in done.stdout


async def ask(stack: PaperStack, request_id: str, n: int) -> int:
    request = make_request(request_id, prompt=9, n=n, max_tokens=30)
    return len([event async for event in stack.client.generate(request)])


class TestDifferent:
    def test_the_first_other_plan_is_shown_field_by_field(self, recorded: Path, run: Replay):
        def change(recorded_calls: list[RecordedCall]) -> None:
            plan = first_plan(recorded_calls).outcome.plan
            plan.admissions[0].slot = 5
            plan.chunk_lens[0] += 1

        rewrite(recorded, change)
        done = run(recorded)
        assert done.returncode == 1
        assert "DIFFERENT after 0 plans, at 3.000000 s (" in done.stdout
        assert "  plan a: step 1 of epoch 1, 2 admitted, 2 chunks" in done.stdout
        lines = done.stdout.splitlines()
        at = lines.index("  plan.admissions[0].slot")
        assert lines[at + 1 : at + 3] == ["    recorded: 5", "    replayed: 0"]
        at = lines.index("  plan.chunk_lens")
        assert lines[at + 1 : at + 3] == ["    recorded: [7, 30]", "    replayed: [6, 30]"]
        before = lines[lines.index("The calls before it:") + 1 :]
        assert before[0] == "  0.000000 s  attach a: epoch 1, 16 blocks of 4, 8 slots, 64 tokens a step"
        assert before[1] == "  0.500000 s  submit short: 6 prompt tokens, max_tokens 2, n 1, tenant x"
        assert before[3].endswith("raised Overloaded: 3 choices wait already; at most 100 may wait")

    def test_a_core_that_decides_otherwise(self, recorded: Path, monkeypatch: pytest.MonkeyPatch, run: Replay):
        monkeypatch.setattr(policy, "chunk_len", lambda num_remaining_tokens, budget: 1)
        done = run(recorded)
        assert done.returncode == 1
        assert "  plan.chunk_lens\n    recorded: [6, 30]\n    replayed: [1, 1]\n" in done.stdout

    def test_a_plan_where_there_was_none(self, recorded: Path, run: Replay):
        rewrite(recorded, lambda recorded_calls: first_plan(recorded_calls).outcome.ClearField("plan"))
        done = run(recorded)
        assert done.returncode == 1
        lines = done.stdout.splitlines()
        at = lines.index("  plan")
        assert lines[at + 1] == "    recorded: None"
        assert lines[at + 2].startswith("    replayed: epoch: 1 step: 1 snapshot: true")

    def test_other_tokens_and_other_ends(self, recorded: Path, run: Replay):
        def change(recorded_calls: list[RecordedCall]) -> None:
            commit = next(call for call in recorded_calls if call.outcome.endings)
            commit.outcome.tokens_crc32 += 1
            commit.outcome.endings[0].finished.num_output_tokens = 9

        rewrite(recorded, change)
        done = run(recorded)
        assert done.returncode == 1
        assert "  tokens_crc32\n" in done.stdout
        assert "  endings[0].finished.num_output_tokens\n    recorded: 9\n    replayed: 2\n" in done.stdout

    def test_a_call_that_raises_by_now(self, recorded: Path, monkeypatch: pytest.MonkeyPatch, run: Replay):
        monkeypatch.setattr(Scheduler, "expire", lambda core, now: 1 // 0)
        done = run(recorded)
        assert done.returncode == 1
        assert "ZeroDivisionError" in done.stdout


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def as_version(version: int) -> bytes:
    header = recording_header(make_limits())
    header.format_version, header.pageloom_version = version, "9.9"
    return record.delimited(header)


def with_policy(name: str) -> bytes:
    header = recording_header(make_limits())
    header.limits.scheduling_policy = name
    return record.delimited(header)


class TestBroken:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda data: b"", "is not a recording of pageloom scheduler --record"),
            (lambda data: b"GGUF" + bytes(100), "is not a recording of pageloom scheduler --record"),
            (lambda data: data[:20], "is not a recording of pageloom scheduler --record"),
            (lambda data: as_version(7), "is of recording format 7, written by pageloom 9.9; this is"),
            (lambda data: with_policy("lottery"), "cannot be replayed by pageloom"),
            (lambda data: data[:150] + b"\xff" * 12 + data[162:], "is damaged: there is no message at byte"),
        ],
        ids=["empty", "something else", "cut in the header", "another version", "a policy of another", "damaged"],
    )
    def test_it_is_said_in_one_line(self, recorded: Path, change: Callable[[bytes], bytes], says: str, run: Replay):
        damage(recorded, change)
        done = run(recorded)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"pageloom replay: {recorded} ")
        assert says in line

    def test_no_such_file(self, tmp_path: Path, run: Replay):
        done = run(tmp_path / "nothing")
        assert done.returncode == 2
        assert done.stderr == f"pageloom replay: cannot read {tmp_path / 'nothing'}: No such file or directory\n"

    def test_a_folder(self, tmp_path: Path, run: Replay):
        done = run(tmp_path)
        assert done.returncode == 2
        assert "Is a directory" in done.stderr


class TestFile:
    def test_it_is_written_within_a_second(self, tmp_path: Path):
        path = tmp_path / "core.rec"
        file = RecordingFile(path, make_limits())
        RecordingScheduler(make_limits(), file.put).attach(paper_hello("a"), 1, 0.0)
        until_s = time.monotonic() + 5
        while path.stat().st_size == 0 and time.monotonic() < until_s:
            time.sleep(0.05)
        assert len(calls(path)) == 1
        file.close()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
    def test_a_full_disk_ends_the_recording_and_not_the_service(self):
        with capture_logs() as logs:
            file = RecordingFile(Path("/dev/full"), make_limits())
            core = RecordingScheduler(make_limits(), file.put)
            core.attach(paper_hello("a"), 1, 0.0)
            file.close()
            drive_on(core)
        (ended,) = [line for line in logs if line["log_level"] == "error"]
        assert (ended["event"], ended["reason"]) == ("the recording ends here", "No space left on device")
        assert os.path.exists("/dev/full")

    def test_a_call_that_cannot_be_written_down_ends_the_recording_and_not_the_service(self):
        taken: list[RecordedCall] = []

        def take(call: RecordedCall) -> bool:
            taken.append(call)
            return True

        core = RecordingScheduler(make_limits(), take)
        core.attach(paper_hello("a"), 1, 0.0)
        with capture_logs() as logs:
            # No worker can send it: the protocol has no negative numbers.
            ignored = core.commit("a", StepResult(epoch=1, step=-1), 0.0)
            drive_on(core)
        assert ignored.facts is None
        assert len(taken) == 1
        assert [line["log_level"] for line in logs] == ["error"]

    def test_what_was_there_before_is_kept(self, recorded: Path):
        before = recorded.read_bytes()
        RecordingFile(recorded, make_limits()).close()
        assert Path(f"{recorded}.old").read_bytes() == before
        assert calls(recorded) == []

    def test_a_place_that_cannot_be_written(self, tmp_path: Path):
        with pytest.raises(StartupError, match=r"--record: cannot write .*: No such file or directory"):
            RecordingFile(tmp_path / "missing" / "core.rec", make_limits())


def drive_on(core: Scheduler) -> None:
    core.submit(make_request(), 1.0)
    assert core.plan("a", 2.0) is not None


class TestProcess:
    def test_a_scheduler_that_cannot_record_does_not_start(self, tmp_path: Path):
        port = str(free_port())
        done = pageloom("scheduler", "--port", port, "--record", str(tmp_path / "missing" / "core.rec"))
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("pageloom scheduler: --record: cannot write ")

    async def test_a_killed_scheduler_leaves_a_recording_that_replays(self, tmp_path: Path, run: Replay):
        path = tmp_path / "core.rec"
        process = await ServiceProcess.start("scheduler", "scheduler_svc", SchedulerConfig(record_path=str(path)))
        ready = await anext(aiter(process.statuses()))
        assert isinstance(ready, SchedulerReady)
        async with EngineClient(ready.address) as client:
            stack = PaperStack(ready.address, None, client)  # type: ignore[arg-type]
            async with stack.attached("one"):
                assert await ask(stack, "r", 1) > 1
                # Longer than a recording waits to be written.
                await asyncio.sleep(1.2)
                process.kill()
                await process.wait()
                await asyncio.sleep(0.1)
        done = run(path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "tokens: 30, endings: 1" in done.stdout
