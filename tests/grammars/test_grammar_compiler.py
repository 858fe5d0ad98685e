"""Compiling grammars in processes that can be killed: whatever a grammar does, it costs nobody but its sender."""

import asyncio
import contextlib
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from pageloom.errors import InvalidRequest, Overloaded, Unavailable
from pageloom.form_limits import FormLimits
from pageloom.grammar_limits import GrammarLimits
from pageloom.grammars import compiler as grammar_compiler
from pageloom.grammars import grammar as grammars
from pageloom.grammars.compiler import GrammarCompiler
from pageloom.grammars.grammar_process import GrammarProcess
from pageloom.grammars.tag_format import format_grammar
from pageloom.tokenizer import Tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


def processes() -> list[psutil.Process]:
    """One that has ended and was not waited for is none, and it may do so while it is looked at."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and "pageloom.grammars.compile_process" in child.cmdline():
                found.append(child)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- what happens in another process is polled
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tokenizer: Tokenizer) -> AsyncGenerator[GrammarCompiler]:
    """With one idle process, which most tests leave as it is."""
    async with GrammarCompiler(tokenizer) as running:
        yield running
    assert not processes()


@pytest_asyncio.fixture(loop_scope="module")
async def compiler(shared: GrammarCompiler) -> GrammarCompiler:
    shared._verdicts.clear()
    await shared.check(grammars.json_object())
    return shared


async def refusal(compiler: GrammarCompiler, grammar: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await compiler.check(grammar, param="response_format")
    assert caught.value.param == "response_format"
    return caught.value.message


async def test_what_compiles_passes_and_what_does_not_is_explained(compiler: GrammarCompiler):
    assert "look-around" in await refusal(compiler, grammars.regex("(?=a)b"))
    assert "unknown name" in await refusal(compiler, grammars.lark("start: missing"))
    assert "no text satisfies it" in await refusal(compiler, grammars.regex(r"[^\s\S]"))
    assert "unknown special token" in await refusal(compiler, grammars.lark("start: <|nothing|>"))
    await compiler.check(grammars.lark('start: <|im_end|> "a"'))
    tag = {"type": "tag", "begin": "<|im_start|>a", "content": {"type": "any_text"}, "end": "<|im_end|>"}
    await compiler.check(format_grammar(tag, param="p", special_tokens={"<|im_start|>": 1, "<|im_end|>": 2}))
    assert len(processes()) == 1


async def test_a_verdict_is_remembered(compiler: GrammarCompiler):
    good, bad = grammars.choice(["a"]), grammars.regex("(?=a)b")
    await compiler.check(good)
    message = await refusal(compiler, bad)
    (process,) = processes()
    process.suspend()
    await compiler.check(good)
    assert await refusal(compiler, bad) == message
    process.resume()


async def test_verdicts_are_bounded(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_compiler, "MAX_VERDICTS", 10)
    for number in range(30):
        await compiler.check(grammars.choice([str(number)]))
    assert len(compiler._verdicts) == 10


async def test_who_asks_at_once_for_the_same_waits_for_one_compilation(compiler: GrammarCompiler):
    grammar = grammars.json_object()
    await asyncio.gather(*(compiler.check(grammar) for _ in range(100)))
    assert len(processes()) == 1


async def test_who_leaves_takes_nothing_along(compiler: GrammarCompiler):
    grammar = grammars.choice(["shared"])
    (process,) = processes()
    process.suspend()
    leaving = asyncio.create_task(compiler.check(grammar))
    staying = asyncio.create_task(compiler.check(grammar))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.sleep(0.01)
    process.resume()
    await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_compilation_without_end_is_killed(tokenizer: Tokenizer):
    before = processes()
    async with GrammarCompiler(tokenizer, form_limits=FormLimits(max_grammar_compile_s=1)) as compiler:
        await compiler.check(grammars.json_object())
        (stuck,) = set(processes()) - set(before)
        stuck.suspend()
        assert "takes longer than 1 s" in await refusal(compiler, grammars.choice(["stuck"]))
        await until(lambda: stuck not in processes())


async def test_an_operator_sets_what_a_grammar_may_take(tokenizer: Tokenizer):
    async with GrammarCompiler(tokenizer, grammar_limits=GrammarLimits(max_grammar_size=9)) as compiler:
        rules = "".join(f'\nr{i}: "{i}" r{i}?' for i in range(9))
        said = await refusal(compiler, grammars.lark(f"start: {' '.join(f'r{i}' for i in range(9))}{rules}"))
        assert "(limit for this grammar: 9)" in said


@pytest.mark.parametrize("crash", [signal.SIGABRT, signal.SIGSEGV])
async def test_a_crash_is_the_grammars_fault(compiler: GrammarCompiler, crash: signal.Signals):
    """What ends a process whose memory, or whose stack, is too small."""
    (process,) = processes()
    process.suspend()
    waiting = asyncio.create_task(refusal(compiler, grammars.choice([crash.name])))
    await asyncio.sleep(0.05)
    process.send_signal(crash)
    process.resume()
    assert "too much memory" in await waiting
    assert not processes()


async def test_a_process_that_is_killed_says_nothing_of_its_grammar(compiler: GrammarCompiler):
    (process,) = processes()
    process.suspend()
    waiting = asyncio.create_task(compiler.check(grammars.choice(["innocent"])))
    await asyncio.sleep(0.05)
    process.kill()
    await waiting
    (another,) = processes()
    assert another != process


async def test_a_grammar_that_costs_two_processes_is_at_fault(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
):
    start, started = GrammarProcess.start, asyncio.Event()

    async def start_and_stop(*settings: Any) -> GrammarProcess:
        process = await start(*settings)
        processes()[0].suspend()
        started.set()
        return process

    monkeypatch.setattr(GrammarProcess, "start", start_and_stop)
    (first,) = processes()
    first.suspend()
    waiting = asyncio.create_task(refusal(compiler, grammars.choice(["again"])))
    await asyncio.sleep(0.05)
    first.kill()
    await started.wait()
    processes()[0].kill()
    assert "too much memory" in await waiting


@pytest.mark.parametrize("notices", [True, False])
async def test_a_process_that_died_idle_is_replaced(compiler: GrammarCompiler, notices: bool):
    (process,) = processes()
    process.kill()
    if notices:
        await until(lambda: process not in processes())
        await asyncio.sleep(0.02)
    await compiler.check(grammars.choice([f"next {notices}"]))


async def test_a_slow_grammar_holds_up_no_other(compiler: GrammarCompiler):
    (process,) = processes()
    process.suspend()
    slow = asyncio.create_task(compiler.check(grammars.choice(["slow"])))
    await asyncio.sleep(0.01)
    await compiler.check(grammars.choice(["quick"]))
    process.resume()
    await slow
    # One stays, for the next grammar.
    await until(lambda: len(processes()) == 1)


async def test_too_many_at_once_are_told_to_come_later(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_compiler, "MAX_COMPILATIONS", 2)
    checks = [asyncio.create_task(compiler.check(grammars.choice([str(number)]))) for number in range(3)]
    results = await asyncio.gather(*checks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), type(None), Overloaded]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no such module >&2; exit 3", "no such module"),
        ("exit 3", "it ended with code 3 and said nothing"),
        ("kill -9 $$", "it ended with code -9 and said nothing"),
        (None, "No such file or directory"),
    ],
)
async def test_it_says_so_if_no_process_can_be_started(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, reason: str
):
    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    before = processes()
    with capture_logs() as logs:
        async with GrammarCompiler(tokenizer) as compiler:
            with pytest.raises(Unavailable, match="grammars cannot be compiled now"):
                await compiler.check(grammars.json_object())
    (line,) = logs
    assert (line["log_level"], reason in line["reason"]) == ("error", True), line
    assert set(processes()) <= set(before)


SPAWNS = """
import ctypes, os, socket
from pageloom.grammars.grammar_process import spawn

forks = []
note = ctypes.CFUNCTYPE(None)(lambda: forks.append(True))
assert ctypes.CDLL(None)["__register_atfork"](note, None, None, None) == 0
ours, theirs = socket.socketpair()
with ours, theirs, spawn(theirs) as process:
    process.kill()
print(len(forks))
if os.fork() == 0:
    os._exit(0)
print(len(forks))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="looks into glibc")
async def test_a_process_is_started_without_a_fork():
    """gRPC's handlers of forks crash some of the children."""
    ran = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", SPAWNS], capture_output=True, text=True)
    assert (ran.stdout.split(), ran.stderr) == (["0", "1"], "")


async def test_without_grammars_there_is_no_process(tokenizer: Tokenizer):
    before = processes()
    async with GrammarCompiler(tokenizer):
        assert set(processes()) <= set(before)


def nested(levels: int) -> str:
    return "start: " + "(" * levels + '"a"' + ")" * levels


def doubling(levels: int) -> object:
    """Each level says twice what the next one is."""
    definitions: dict[str, object] = {
        f"l{level}": {
            "allOf": [{"$ref": f"#/$defs/l{level + 1}"}] * 2,
            "anyOf": [{"$ref": f"#/$defs/l{level + 1}"}] * 2,
        }
        for level in range(levels)
    }
    return {"$ref": "#/$defs/l0", "$defs": {**definitions, f"l{levels}": {"type": "string"}}}


BOMBS = {
    "nested groups": lambda: grammars.lark(nested(20_000)),
    "nested regex": lambda: grammars.regex("(" * 8000 + "a" + ")" * 8000),
    "counted regex": lambda: grammars.regex("((a{1,999}){1,999}b){1,999}"),
    "backtracking regex": lambda: grammars.regex("(a?){2000}a{2000}" * 3),
    "wide classes": lambda: grammars.regex(r"(\w\W\d\D){400}.{1000}" * 8),
    "ambiguous rules": lambda: grammars.lark("start: start start | start start start | /a*/ | "),
    "doubling schema": lambda: grammars.json_schema(doubling(20), param="p"),
    "long strings": lambda: grammars.json_schema({"minLength": 10**6, "pattern": "(ab|c){9}"}, param="p"),
    "many items": lambda: grammars.json_schema({"minItems": 10**9, "items": {"enum": [1, 2]}}, param="p"),
    "many alternatives": lambda: grammars.lark("start: " + " | ".join(f"/a{{{n}}}b?c*/" for n in range(1, 3000))),
    "big numbers": lambda: grammars.json_schema({"multipleOf": 1e-300, "maximum": 1e300}, param="p"),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_costs_nobody_but_its_sender(compiler: GrammarCompiler, name: str):
    """By the processor's time: how long all of it takes depends on what else runs. That a compilation is ended by the
    clock has a test above."""
    bomb = asyncio.create_task(compiler.check(BOMBS[name]()))
    longest_s, last_s = 0.0, time.thread_time()
    while not bomb.done():
        await asyncio.sleep(0.005)
        longest_s, last_s = max(longest_s, time.thread_time() - last_s), time.thread_time()
    # Either llguidance can do it, or it is refused.
    assert isinstance(bomb.exception(), InvalidRequest | None)
    assert longest_s < 0.5, "the event loop was held up"
    await compiler.check(grammars.choice(["after " + name]))


async def test_nothing_grows_with_the_number_of_schemas(compiler: GrammarCompiler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def check_all(first: int) -> int:
        for number in range(first, first + 500):
            schema = {"type": "object", "properties": {f"p{number}": {"enum": [number, str(number) * 20]}}}
            await compiler.check(grammars.json_schema(json.dumps(schema), param="p"))
        (process,) = processes()
        return int(process.memory_info().rss)

    before = await check_all(0)
    after = await check_all(500)
    assert after - before < 8 * 2**20
    assert not list(tmp_path.iterdir())
