"""What the gateway knows of the engine, kept current by the scheduler's push: nothing polls."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing

import structlog

from pageloom.client import EngineClient
from pageloom.errors import PageloomError, Unavailable
from pageloom.plan import ModelInfo
from pageloom.requests import EngineInfo

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 2.0
# A model's vocabulary may be larger than its tokenizer's, rounded up for the sake of its matrices.
MOST_PADDING = 1.05
_log = structlog.get_logger(__name__)


class EngineState:
    """`watch` is the only writer; requests read."""

    def __init__(self, client: EngineClient, num_token_ids: int) -> None:
        """`num_token_ids` are those of the gateway's tokenizer, which must be the model's."""
        self._client = client
        self._num_token_ids = num_token_ids
        self._info: EngineInfo | None = None
        self._obstacle: str | None = "the scheduler has not been reached yet"

    @property
    def obstacle(self) -> str | None:
        """Why no request can be served now; None if they can."""
        return self._obstacle

    @property
    def last_known_model(self) -> ModelInfo | None:
        """The model, also while it cannot be used."""
        return None if self._info is None else self._info.model

    def require_model(self) -> ModelInfo:
        """The model that serves. Raises Unavailable."""
        model = self.last_known_model
        if self._obstacle is not None or model is None:
            raise Unavailable(self._obstacle or "the scheduler serves no model")
        return model

    async def watch(self) -> None:
        """Follows the engine for ever; reconnects with jittered, growing pauses."""
        try:
            await self._follow()
        finally:
            # Nothing may be served on what is no longer kept current.
            self._obstacle = "the watch over the scheduler has ended"

    async def _follow(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                async with aclosing(self._client.watch_serving()) as changes:
                    async for serving in changes:
                        await self._update(serving)
                        backoff_s = FIRST_BACKOFF_S
                reason = "it ended the watch"
            except PageloomError as error:
                reason = error.message
            self._set_obstacle("the scheduler cannot be reached", reason=reason)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)

    async def _update(self, serving: bool) -> None:
        self._info = await self._client.info()
        if self._info.draining:
            self._set_obstacle("the scheduler is shutting down")
        elif not serving or not self._info.workers or self._info.model is None:
            self._set_obstacle("no worker is attached to the scheduler; one that starts is still loading the model")
        else:
            self._obstacle = None
            _log.info("engine serves", model=self._info.model.name, workers=len(self._info.workers))
            self._compare_vocabularies(self._info.model)

    def _compare_vocabularies(self, model: ModelInfo) -> None:
        if not self._num_token_ids <= model.vocab_size <= MOST_PADDING * self._num_token_ids:
            _log.warning(
                "the engine's model is another than this gateway's, so texts will be wrong: give both the same MODEL",
                model=model.name,
                its_vocab_size=model.vocab_size,
                tokenizer_vocab_size=self._num_token_ids,
            )

    def _set_obstacle(self, obstacle: str, **facts: str) -> None:
        if obstacle != self._obstacle:
            # Before it has served once this is how every start looks.
            level = logging.INFO if self._info is None or self._info.model is None else logging.WARNING
            _log.log(level, "engine does not serve", because=obstacle, **facts)
        self._obstacle = obstacle
