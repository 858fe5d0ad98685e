"""One process that compiles grammars, as the gateway holds it: started, asked, killed. `compile_process.py` runs in
it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Self

import orjson
import structlog

from pageloom.errors import Unavailable
from pageloom.form_limits import FormLimits
from pageloom.grammar_limits import GrammarLimits
from pageloom.grammars.pipe_frames import HEADER_BYTES, encode_frame, payload_len
from pageloom.tokenizer import Tokenizer

MAX_START_S = 20.0
# Most grammars take a millisecond. From here on the model's steps come first, on a machine without a core to spare.
DEMOTED_AFTER_S, DEMOTED_NICENESS = 0.1, 19
# What a stack or a memory that is too small ends with. Any other signal is somebody's, and an exit is ours.
_CRASHES = frozenset({-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL})
_MAX_LOGGED_CHARS = 2000
_log = structlog.get_logger(__name__)


class ProcessLost(Exception):
    """It ended before it answered. `crashed`: that was the grammar's doing for certain."""

    def __init__(self, *, crashed: bool) -> None:
        super().__init__()
        self.crashed = crashed


class GrammarProcess:
    """A running `compile_process.py`, for one question at a time. It ends when its input does, so it does not outlive
    us; whoever starts one kills it."""

    def __init__(
        self, process: subprocess.Popen[bytes], requests: asyncio.StreamWriter, answers: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._requests = requests
        self._answers = answers
        # There is no way back to the usual priority.
        self.demoted = False

    @classmethod
    async def start(cls, tokenizer: Tokenizer, form_limits: FormLimits, grammar_limits: GrammarLimits) -> Self:
        """Raises Unavailable, with the reason in the log."""
        settings = await asyncio.to_thread(_settings, tokenizer, form_limits, grammar_limits)
        ours, theirs = socket.socketpair()
        with theirs:
            answers, requests = await asyncio.open_unix_connection(sock=ours)
            try:
                # Takes a millisecond; from a thread it would be nobody's child if we are cancelled meanwhile.
                process = spawn(theirs)
            except OSError as error:
                requests.close()
                raise _not_started(str(error)) from None
        started = cls(process, requests, answers)
        assert process.stderr is not None
        with process.stderr as words:
            try:
                async with asyncio.timeout(MAX_START_S):
                    await started._ask(settings)
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                await started.kill()
                told = (await asyncio.to_thread(words.read)).decode(errors="replace").strip()[-_MAX_LOGGED_CHARS:]
                raise _not_started(told or f"it ended with code {process.returncode} and said nothing") from None
            except BaseException:
                await started.kill()
                raise
        return started

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self._answers.at_eof()

    async def find_error(self, grammar: str) -> str:
        """Empty if there is none. Raises ProcessLost."""
        demotion = asyncio.get_running_loop().call_later(DEMOTED_AFTER_S, self._demote)
        try:
            return (await self._ask(grammar.encode())).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.kill()
            raise ProcessLost(crashed=self._process.returncode in _CRASHES) from None
        finally:
            demotion.cancel()

    async def kill(self) -> None:
        """Returns when it has ended. One that has ended already keeps its return code."""
        self._process.kill()
        # The system closes its end after it has taken its memory back. Not waited for in a thread: when an interpreter
        # ends, there are none any more.
        with suppress(ConnectionError):
            await self._answers.read()
        self._requests.close()
        self._process.wait()

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


def spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Not by the event loop's own function: uvloop's forks, and gRPC's threads crash one such child in twenty before it
    becomes another program. Here it is vfork, of which they hear nothing. Raises OSError."""
    return subprocess.Popen(
        (sys.executable, "-m", "pageloom.grammars.compile_process"),
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        # Until it has started; what a crash says there later is of the grammar, not of us.
        stderr=subprocess.PIPE,
        # A Ctrl-C in the terminal is for the process that asks, which drains first.
        start_new_session=True,
    )


def _not_started(reason: str) -> Unavailable:
    _log.error("the process that compiles grammars does not start", reason=reason)
    return Unavailable("grammars cannot be compiled now: the process for it does not start; the server's log says why")


def _settings(tokenizer: Tokenizer, form_limits: FormLimits, grammar_limits: GrammarLimits) -> bytes:
    """The vocabulary and the limits. JSON has no bytes; each stands for the character with its number."""
    tokens = [tokenizer.token_bytes(token_id).decode("latin-1") for token_id in range(tokenizer.vocab_size)]
    settings = {
        "tokens": tokens,
        "special_token_ids": sorted(tokenizer.special_ids),
        "limits": grammar_limits.of_parser,
        "max_compile_s": form_limits.max_grammar_compile_s,
        "max_compile_bytes": form_limits.max_grammar_compile_bytes,
    }
    return orjson.dumps(settings)
