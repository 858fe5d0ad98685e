"""Can this grammar be compiled, within its time and memory? Asked of processes that can be killed, before the engine
sees the request: a compilation in here could not be stopped, and would hold up every other request."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from contextlib import suppress
from typing import Self

import orjson

from pageloom.errors import EngineError, InvalidRequest, Overloaded
from pageloom.grammars.pipe_frames import HEADER_BYTES, encode_frame, payload_len
from pageloom.tokenizer import Tokenizer

# A client has its refusal within 5 s.
MAX_COMPILE_S = 4
MAX_WAIT_S, MAX_START_S = 5.0, 20.0
# Most grammars take a millisecond. From here on the model's steps come first, on a machine without a core to spare.
DEMOTED_AFTER_S, DEMOTED_NICENESS = 0.1, 19
# A grammar that takes its time keeps one process busy; the others stay free for those that take a millisecond.
MAX_PROCESSES, MAX_IDLE_PROCESSES = 4, 1
MAX_COMPILATIONS = 64
# Digests of 16 bytes and short errors: at most 4 MiB, in memory only.
MAX_VERDICTS = 4096


class GrammarCompiler:
    """Owned by the event loop. Starts its first process when the first grammar comes; `close` ends them all."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._places = asyncio.Semaphore(MAX_PROCESSES)
        self._processes: set[_GrammarProcess] = set()
        self._idle: list[_GrammarProcess] = []
        self._endings: set[asyncio.Task[None]] = set()
        self._compilations: dict[bytes, asyncio.Task[str]] = {}
        # Least recently used first; empty for a grammar that is fine.
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, grammar: str, *, param: str = "grammar") -> None:
        """Raises InvalidRequest, naming `param`, unless it compiles; Overloaded if too many others wait."""
        key = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            # Who asks for the same grammar meanwhile waits with us, and stays if we leave.
            verdict = await asyncio.shield(self._compilation(key, grammar))
        else:
            self._verdicts.move_to_end(key)
        if verdict:
            raise InvalidRequest(f"{param} cannot be used: {verdict}", param=param)

    async def close(self) -> None:
        """Ends what runs, and waits until it has."""
        for task in self._compilations.values():
            task.cancel()
        await asyncio.gather(*self._compilations.values(), return_exceptions=True)
        for process in list(self._processes):
            await self._end(process)
        await asyncio.gather(*self._endings)

    def _compilation(self, key: bytes, grammar: str) -> asyncio.Task[str]:
        task = self._compilations.get(key)
        if task is None:
            if len(self._compilations) >= MAX_COMPILATIONS:
                raise Overloaded("too many grammars are being compiled")
            task = self._compilations[key] = asyncio.create_task(self._compile(key, grammar))
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: bytes, task: asyncio.Task[str]) -> None:
        del self._compilations[key]
        if not task.cancelled():
            # Retrieved, for it may be that nobody has stayed.
            task.exception()

    async def _compile(self, key: bytes, grammar: str) -> str:
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded("too many grammars are being compiled") from None
        process: _GrammarProcess | None = None
        try:
            process = await self._idle_one() or await self._start()
            async with asyncio.timeout(MAX_COMPILE_S):
                verdict = await process.find_error(grammar)
            self._keep(key, verdict)
            if len(self._idle) < MAX_IDLE_PROCESSES and not process.demoted:
                self._idle.append(process)
                process = None
            return verdict
        except TimeoutError:
            return f"compiling it takes longer than {MAX_COMPILE_S} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            return "compiling it takes too much memory"
        finally:
            self._leave_place(process)

    def _leave_place(self, process: _GrammarProcess | None) -> None:
        """Ends the process, if one is given, before somebody else gets the place. Nobody waits for that: what is killed
        has yet to give its memory back, at its low priority."""
        if process is None:
            self._places.release()
            return
        ending = asyncio.create_task(self._end(process))
        self._endings.add(ending)
        ending.add_done_callback(self._on_ended)

    def _on_ended(self, ending: asyncio.Task[None]) -> None:
        self._endings.discard(ending)
        self._places.release()

    async def _idle_one(self) -> _GrammarProcess | None:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await self._end(process)
        return None

    def _keep(self, key: bytes, verdict: str) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)

    async def _start(self) -> _GrammarProcess:
        vocabulary = await asyncio.to_thread(_vocabulary, self._tokenizer)
        process = await _GrammarProcess.start()
        self._processes.add(process)
        try:
            async with asyncio.timeout(MAX_START_S):
                await process.load(vocabulary)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await self._end(process)
            raise EngineError("the process that compiles grammars does not start") from None
        except asyncio.CancelledError:
            await self._end(process)
            raise
        return process

    async def _end(self, process: _GrammarProcess) -> None:
        self._processes.discard(process)
        await process.kill()


class _GrammarProcess:
    """A running `compile_process.py`. It ends when its input does, so it does not outlive us."""

    def __init__(
        self, process: subprocess.Popen[bytes], requests: asyncio.StreamWriter, answers: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._requests = requests
        self._answers = answers
        # There is no way back to the usual priority.
        self.demoted = False

    @classmethod
    async def start(cls) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(_spawn, theirs)
        answers, requests = await asyncio.open_unix_connection(sock=ours)
        return cls(process, requests, answers)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self._answers.at_eof()

    async def load(self, vocabulary: bytes) -> None:
        await self._ask(vocabulary)

    async def find_error(self, grammar: str) -> str:
        demotion = asyncio.get_running_loop().call_later(DEMOTED_AFTER_S, self._demote)
        try:
            return (await self._ask(grammar.encode())).decode()
        finally:
            demotion.cancel()

    async def kill(self) -> None:
        self._process.kill()
        self._requests.close()
        await asyncio.to_thread(self._process.wait)

    def _demote(self) -> None:
        self.demoted = True
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, DEMOTED_NICENESS)

    async def _ask(self, payload: bytes) -> bytes:
        if self._requests.is_closing():
            # Otherwise uvloop would call it another kind of error.
            raise BrokenPipeError
        self._requests.write(encode_frame(payload))
        await self._requests.drain()
        header = await self._answers.readexactly(HEADER_BYTES)
        return await self._answers.readexactly(payload_len(header))


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Not by the event loop's own function: uvloop's forks, and gRPC's threads crash one such child in twenty before it
    becomes another program. Here it is vfork, of which they hear nothing."""
    return subprocess.Popen(
        (sys.executable, "-m", "pageloom.grammars.compile_process", str(MAX_COMPILE_S)),
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        # What a crash says there is of the grammar, not of us.
        stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the process that asks, which drains first.
        start_new_session=True,
    )


def _vocabulary(tokenizer: Tokenizer) -> bytes:
    """JSON has no bytes; each stands for the character with its number."""
    tokens = [tokenizer.token_bytes(token_id).decode("latin-1") for token_id in range(tokenizer.vocab_size)]
    return orjson.dumps({"tokens": tokens, "special_token_ids": sorted(tokenizer.special_ids)})
