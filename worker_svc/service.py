"""Keeps the worker attached: dials the scheduler, runs one attachment to its end, dials again."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import structlog

from pageloom import wire
from pageloom.errors import StartupError
from pageloom.plan import WorkerHello
from pageloom.rpc.v1 import worker_pb2, worker_pb2_grpc
from pageloom.rpc_channel import open_channel
from pageloom.waiting import is_set_within
from worker_svc.attachment import AttachCall, Attachment, ProtocolBroken
from worker_svc.metrics import WorkerMetrics
from worker_svc.step_thread import Runner

log = structlog.get_logger()

_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 5.0
_DRAINED_DELAY_S = 1.0
_WELCOME_TIMEOUT_S = 10.0
# What a scheduler gets to end the call beyond the time that the worker gave when it asked to leave.
_LEAVE_GRACE_S = 2.0
# The scheduler will never take this worker as it is, so dialling again is useless.
_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


# A grammar gets a tenth of a core that the model has use for.
_GRAMMAR_NICENESS = 10


def _give_way() -> None:
    """In a thread that compiles grammars: on a CPU the model's threads wait for the slowest of them."""
    if sys.platform == "linux":
        # There, a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GRAMMAR_NICENESS)


class AttachLoop:
    """Attaches `runner` to the scheduler at `address`, again and again, until it is stopped or sent away."""

    def __init__(
        self,
        runner: Runner,
        address: str,
        worker_id: str,
        metrics: WorkerMetrics,
        on_attached: Callable[[], object] = lambda: None,
    ) -> None:
        self._runner = runner
        self._address = address
        self._metrics = metrics
        self._on_attached = on_attached
        self._hello = WorkerHello(
            worker_id=worker_id,
            boot_id=secrets.token_hex(8),
            model=runner.model_info,
            cache=runner.cache_info,
            max_num_seqs=runner.max_num_seqs,
            max_num_batched_tokens=runner.max_num_batched_tokens,
            max_num_draft_tokens=runner.max_num_draft_tokens,
            num_stages=runner.num_stages,
        )
        # A welcome to an epoch that is not above it comes from a scheduler that was replaced.
        self._highest_epoch = 0
        self._stopping = asyncio.Event()
        self._leave_timeout_s = 0.0
        # While attached: the attachment, and the limit on how long it may last.
        self._attached: tuple[Attachment, asyncio.Timeout] | None = None
        # One thread for all attachments: a thread that calls torch starts a team of its own.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._preparing_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars", initializer=_give_way)

    async def serve(self) -> None:
        """Returns after `stop`, or when the scheduler has sent this worker away for good. Raises StartupError if it
        refuses this worker. Can be called once."""
        try:
            await self._attach_again_and_again()
        finally:
            # The step at hand ends first, but nobody needs it.
            self._thread.shutdown(wait=False)
            self._preparing_thread.shutdown(wait=False, cancel_futures=True)

    async def stop(self, drain_timeout_s: float = 0.0) -> None:
        """Makes `serve` return: asks the scheduler to let this worker leave, which gives what it runs that long to
        finish and then gives it to others. May be called again with less time."""
        self._leave_timeout_s = drain_timeout_s
        self._stopping.set()
        if self._attached is not None:
            self._leave(*self._attached)

    async def _attach_again_and_again(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stopping.is_set():
            started_s = time.monotonic()
            try:
                sent_away = await self._attach()
                log.info("detached", scheduler=self._address, for_good=sent_away)
                if sent_away:
                    return
                # A scheduler that drained us is about to end, and its successor has yet to start.
                delay_s = _DRAINED_DELAY_S
            except grpc.aio.AioRpcError as error:
                if error.code() in _REFUSALS:
                    raise StartupError(f"the scheduler at {self._address} refused it: {error.details()}") from None
                log.warning("not attached", scheduler=self._address, reason=error.details())
            except ProtocolBroken as error:
                log.error("plan stream broken", reason=str(error))
            if time.monotonic() - started_s > _LONGEST_DELAY_S:
                delay_s = _FIRST_DELAY_S
            # Jitter keeps a fleet from dialling a restarted scheduler in one instant.
            await is_set_within(self._stopping, delay_s * random.uniform(0.5, 1.0))
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    def _leave(self, attachment: Attachment, limit: asyncio.Timeout) -> None:
        if limit.expired():
            return
        attachment.leave(self._leave_timeout_s)
        limit.reschedule(asyncio.get_running_loop().time() + self._leave_timeout_s + _LEAVE_GRACE_S)

    async def _attach(self) -> bool:
        """Dials and runs one attachment to its end: whether the scheduler sent this worker away for good."""
        async with open_channel(self._address) as channel:
            call = worker_pb2_grpc.WorkerStub(channel).Attach()
            try:
                hello = replace(self._hello, highest_epoch=self._highest_epoch)
                await call.write(worker_pb2.AttachRequest(hello=wire.hello_to_proto(hello)))
                messages = aiter(call)
                async with asyncio.timeout(_WELCOME_TIMEOUT_S):
                    welcome = await self._take_welcome(messages)
                log.info("attached", scheduler=self._address, epoch=welcome.epoch)
                self._on_attached()
                return await self._run(call, messages, welcome)
            except asyncio.InvalidStateError:
                # A write after the scheduler ended the call; the status says why it did.
                raise ProtocolBroken(await call.details() or "the scheduler ended the call") from None
            except TimeoutError:
                raise ProtocolBroken(f"no Welcome within {_WELCOME_TIMEOUT_S:g} s") from None
            finally:
                call.cancel()

    async def _take_welcome(self, messages: AsyncIterator[worker_pb2.AttachResponse]) -> worker_pb2.Welcome:
        message = await anext(messages, worker_pb2.AttachResponse())
        if message.WhichOneof("message") != "welcome":
            raise ProtocolBroken("the scheduler did not answer with Welcome")
        if message.welcome.epoch <= self._highest_epoch:
            raise ProtocolBroken(f"epoch {message.welcome.epoch} is not above {self._highest_epoch}")
        self._highest_epoch = message.welcome.epoch
        return message.welcome

    async def _run(
        self, call: AttachCall, messages: AsyncIterator[worker_pb2.AttachResponse], welcome: worker_pb2.Welcome
    ) -> bool:
        attachment = Attachment(call, welcome, self._runner, self._thread, self._preparing_thread, self._metrics)
        try:
            async with asyncio.timeout(None) as limit:
                self._attached = attachment, limit
                if self._stopping.is_set():
                    self._leave(attachment, limit)
                return await attachment.run(messages)
        except TimeoutError:
            raise ProtocolBroken("the scheduler did not let this worker leave in time") from None
        finally:
            self._attached = None
