"""What did one streamed completion deliver, and when? Encodes /v1/completions requests and reads their answers."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, Exchange
from benchmarks.workloads import CompletionRequest

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished request. Times are seconds on one clock; `arrival_s` has one entry per chunk that
    brought tokens, in order, and is never empty."""

    sent_s: float
    arrival_s: tuple[float, ...]
    num_output_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int


def encode_request(endpoint: Endpoint, model: str, request: CompletionRequest) -> bytes:
    """A streaming greedy request that always runs to its full length."""
    body = {
        "model": model,
        "prompt": request.prompt_token_ids,
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return endpoint.encode("POST", "/v1/completions", json.dumps(body).encode())


def read_completion(exchange: Exchange, request: CompletionRequest) -> Completion:
    """Raises: BenchmarkError if the request failed or the server did other work than the request asked for."""
    if exchange.status != 200:
        raise BenchmarkError(f"the server answered {exchange.status}: {_excerpt(exchange.body)}")
    chunks = [(time_s, chunk) for time_s, data in sse_events(exchange.reads) for chunk in _parse(data)]
    usage = _final_usage(chunks)
    completion = Completion(
        sent_s=exchange.sent_s,
        arrival_s=_token_arrivals(chunks),
        num_output_tokens=_count(usage, "completion_tokens"),
        num_prompt_tokens=_count(usage, "prompt_tokens"),
        num_cached_tokens=_num_cached_tokens(usage),
    )
    _check(completion, request)
    return completion


def sse_events(reads: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, with the time of the read that completed it."""
    pending, data = b"", b""
    for time_s, piece in reads:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data += line.removeprefix(b"data:").removeprefix(b" ")
            elif not line and data:
                yield time_s, data
                data = b""


def _parse(data: bytes) -> Iterator[JsonObject]:
    if data == b"[DONE]":
        return
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise BenchmarkError(f"the server sent an event that is not JSON: {_excerpt(data)}") from error
    if not isinstance(chunk, dict) or "error" in chunk:
        raise BenchmarkError(f"the server reported an error in its stream: {_excerpt(data)}")
    yield chunk


def _token_arrivals(chunks: list[tuple[float, JsonObject]]) -> tuple[float, ...]:
    """When tokens arrived: a chunk counts when its running usage grew.

    A server without running usage shows it with the last choice at most. There a chunk counts when it has text; the
    first tokens may have none yet (half a character), so the first chunk does if none has.
    """
    with_choice = [(time_s, chunk) for time_s, chunk in chunks if chunk.get("choices")]
    if with_choice and with_choice[0][1].get("usage"):
        return tuple(_growths(chunks))
    with_text = tuple(time_s for time_s, chunk in with_choice if _text(chunk))
    arrivals = with_text or tuple(time_s for time_s, _ in with_choice[:1])
    if not arrivals:
        raise BenchmarkError("the server's stream has no chunk with a choice")
    return arrivals


def _growths(chunks: list[tuple[float, JsonObject]]) -> Iterator[float]:
    num_tokens = 0
    for time_s, chunk in chunks:
        usage = chunk.get("usage")
        if isinstance(usage, dict) and _count(usage, "completion_tokens") > num_tokens:
            num_tokens = _count(usage, "completion_tokens")
            yield time_s


def _text(chunk: JsonObject) -> str:
    choices = cast(list[JsonObject], chunk["choices"])
    return str(choices[0].get("text") or "")


def _final_usage(chunks: list[tuple[float, JsonObject]]) -> JsonObject:
    usages = [usage for _, chunk in chunks if isinstance(usage := chunk.get("usage"), dict)]
    if not usages:
        raise BenchmarkError("the server's stream has no usage: it does not honour stream_options.include_usage")
    return usages[-1]


def _num_cached_tokens(usage: JsonObject) -> int:
    details = usage.get("prompt_tokens_details")
    return _count(details, "cached_tokens") if isinstance(details, dict) else 0


def _count(usage: JsonObject, name: str) -> int:
    value = usage.get(name) or 0
    if not isinstance(value, int):
        raise BenchmarkError(f"the server's usage has {name} = {value!r}, which is not a count")
    return value


def _check(completion: Completion, request: CompletionRequest) -> None:
    for what, got, asked in (
        ("generated", completion.num_output_tokens, request.num_output_tokens),
        ("read a prompt of", completion.num_prompt_tokens, len(request.prompt_token_ids)),
    ):
        if got != asked:
            raise BenchmarkError(f"wrong token count: the server {what} {got} tokens, the request asked for {asked}")


def _excerpt(data: bytes) -> str:
    return data[:400].decode("utf-8", "replace").strip()
