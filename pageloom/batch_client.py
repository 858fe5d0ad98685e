"""The requests of a batch over HTTP: repeated while the server is full or away for a moment."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from pageloom.batch_lines import LineRequest, encoded

MAX_TRIES = 8
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0
_CONNECT_TIMEOUT_S = 10.0
_TRY_AGAIN = frozenset({429, 502, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """`response` as in a batch's output: status_code, request_id and body; None if there was none, with the reason in
    `failure`."""

    response: dict[str, Any] | None
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response["status_code"] == 200

    @property
    def num_tokens(self) -> int:
        """Tokens that were made for it; of an embedding, those that were read."""
        body = None if self.response is None else self.response["body"]
        usage = body.get("usage") if isinstance(body, dict) else None
        if not isinstance(usage, dict):
            return 0
        return next(
            (usage[name] for name in ("completion_tokens", "output_tokens", "prompt_tokens") if usage.get(name)), 0
        )


class BatchClient:
    """Use as async context manager; `ask` any number of times at once."""

    def __init__(self, url: str, api_key: str | None, *, is_local: bool) -> None:
        """`url` with or without /v1. To a server of this host no proxy leads."""
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=not is_local,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(self, request: LineRequest) -> BatchAnswer:
        """Whatever the outcome is; raises nothing of HTTP."""
        body = encoded(request.body)
        answer = BatchAnswer(response=None)
        pause_s = _FIRST_PAUSE_S
        for attempt in range(MAX_TRIES):
            if attempt:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            answer = await self._ask_once(request.url, body)
            if answer.response is not None and answer.response["status_code"] not in _TRY_AGAIN:
                break
        return answer

    async def _ask_once(self, url: str, body: bytes) -> BatchAnswer:
        try:
            answer = await self._http.post(url, content=body, headers={"content-type": "application/json"})
        except httpx.TransportError as error:
            return BatchAnswer(response=None, failure=f"{self._http.base_url} cannot be reached: {error}")
        return BatchAnswer(
            response={
                "status_code": answer.status_code,
                "request_id": answer.headers.get("x-request-id", ""),
                "body": _parsed(answer),
            }
        )


def _parsed(answer: httpx.Response) -> Any:
    """The text, if a proxy has answered in a language of its own."""
    try:
        return answer.json()
    except ValueError:
        return answer.text
