"""Can this grammar be compiled, within its time and memory? Asked of processes that can be killed, before the engine
sees the request: a compilation in here could not be stopped, and would hold up every other request."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from pageloom.errors import InvalidRequest, Overloaded
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.grammar_limits import DEFAULT_GRAMMAR_LIMITS, GrammarLimits
from pageloom.grammars.grammar_process import GrammarProcess, ProcessLost
from pageloom.tokenizer import Tokenizer

MAX_WAIT_S = 5.0
# A grammar that takes its time keeps one process busy; the others stay free for those that take a millisecond.
MAX_PROCESSES, MAX_IDLE_PROCESSES = 4, 1
MAX_COMPILATIONS = 64
# Digests of 16 bytes and short errors: at most 4 MiB, in memory only.
MAX_VERDICTS = 4096


class GrammarCompiler:
    """Owned by the event loop. Use as async context manager, whose end ends what runs; the first process starts when
    the first grammar comes. `on_refusal` is called for each grammar that is refused."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        form_limits: FormLimits = DEFAULT_FORM_LIMITS,
        grammar_limits: GrammarLimits = DEFAULT_GRAMMAR_LIMITS,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        self._tokenizer = tokenizer
        self._form_limits = form_limits
        self._grammar_limits = grammar_limits
        self._on_refusal = on_refusal
        self._places = asyncio.Semaphore(MAX_PROCESSES)
        self._idle: list[GrammarProcess] = []
        self._tasks = asyncio.TaskGroup()
        # Those that have not answered yet. Cancelled while it cleans up, one would leave a process behind.
        self._running: dict[bytes, asyncio.Task[None]] = {}
        # What is being found out, by the grammar's digest; who wants to know waits for it.
        self._outcomes: dict[bytes, asyncio.Future[str]] = {}
        # Least recently used first; empty for a grammar that is fine.
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        for outcome in self._outcomes.values():
            # Its task had not begun.
            outcome.cancel()
        while self._idle:
            await self._idle.pop().kill()

    async def check(self, grammar: str, *, param: str = "grammar") -> None:
        """Raises InvalidRequest, naming `param`, unless it compiles; Overloaded if too many others wait, Unavailable
        if no process can be started."""
        key = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            # Who asks for the same grammar meanwhile waits with us, and stays if we leave.
            verdict = await asyncio.shield(self._outcome(key, grammar))
        else:
            self._verdicts.move_to_end(key)
        if verdict:
            self._on_refusal()
            raise InvalidRequest(f"{param} cannot be used: {verdict}", param=param)

    def _outcome(self, key: bytes, grammar: str) -> asyncio.Future[str]:
        outcome = self._outcomes.get(key)
        if outcome is None:
            if len(self._outcomes) >= MAX_COMPILATIONS:
                raise Overloaded("too many grammars are being compiled")
            outcome = self._outcomes[key] = asyncio.get_running_loop().create_future()
            self._running[key] = self._tasks.create_task(self._compile(key, grammar, outcome))
        return outcome

    async def _compile(self, key: bytes, grammar: str, outcome: asyncio.Future[str]) -> None:
        """Answers before it cleans up: what is killed has yet to give its memory back, at its low priority, and until
        then nobody else gets its place."""
        async with AsyncExitStack() as leaving:
            try:
                await self._take_place(leaving)
                outcome.set_result(await self._verdict(key, grammar, leaving))
            except Exception as error:
                outcome.set_exception(error)
                # Retrieved, for it may be that nobody has stayed.
                outcome.exception()
            finally:
                # Does nothing unless we are cancelled.
                outcome.cancel()
                del self._outcomes[key], self._running[key]

    async def _take_place(self, leaving: AsyncExitStack) -> None:
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded("too many grammars are being compiled") from None
        leaving.callback(self._places.release)

    async def _verdict(self, key: bytes, grammar: str, leaving: AsyncExitStack) -> str:
        """A process that somebody kills says nothing of its grammar, so another one is asked, once. Only what a process
        has said is remembered: the rest may be the fault of a machine that had much to do."""
        loop = asyncio.get_running_loop()
        left_s = float(self._form_limits.max_grammar_compile_s)
        for may_be_lost in (True, False):
            process = await self._idle_one() or await self._start()
            started_s = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    verdict = await process.find_error(grammar)
            except TimeoutError:
                leaving.push_async_callback(process.kill)
                break
            except ProcessLost as lost:
                if lost.crashed or not may_be_lost:
                    return "compiling it takes too much memory"
                left_s -= loop.time() - started_s
            except BaseException:
                leaving.push_async_callback(process.kill)
                raise
            else:
                self._keep(key, verdict)
                self._put_back(process, leaving)
                return verdict
        return f"compiling it takes longer than {self._form_limits.max_grammar_compile_s} s"

    async def _start(self) -> GrammarProcess:
        return await GrammarProcess.start(self._tokenizer, self._form_limits, self._grammar_limits)

    async def _idle_one(self) -> GrammarProcess | None:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await process.kill()
        return None

    def _put_back(self, process: GrammarProcess, leaving: AsyncExitStack) -> None:
        if len(self._idle) < MAX_IDLE_PROCESSES and not process.demoted:
            self._idle.append(process)
        else:
            leaving.push_async_callback(process.kill)

    def _keep(self, key: bytes, verdict: str) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
