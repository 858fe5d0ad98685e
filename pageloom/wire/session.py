"""A session's messages: requests to start and cancel, and the columns that come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, PromptLogprobs, TokenLogprobs
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2
from pageloom.rpc_errors import error_from_number, to_grpc_status
from pageloom.wire.common import (
    logprobs_from_proto,
    logprobs_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
)
from pageloom.wire.engine import finished_from_proto, finished_to_proto, generate_request_to_proto


class TokensOfStream(Protocol):
    """New tokens of one choice of one request; `logprobs` has one entry for each, or none."""

    @property
    def stream_id(self) -> int: ...
    @property
    def choice_index(self) -> int: ...
    @property
    def first_index(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[TokenLogprobs]: ...


class StreamTokens(NamedTuple):
    """TokensOfStream as they come off the wire."""

    stream_id: int
    choice_index: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class StreamPromptLogprobs(NamedTuple):
    """The next log-probabilities of one request's prompt."""

    stream_id: int
    logprobs: PromptLogprobs


class StreamFinished(NamedTuple):
    """The end of one choice of one request."""

    stream_id: int
    event: ChoiceFinished


class StreamRefused(NamedTuple):
    """A request that was not accepted."""

    stream_id: int
    error: PageloomError


class SessionEvents(NamedTuple):
    """One response. Log-probabilities of a prompt come before tokens, and tokens before the end of their choice."""

    prompt_logprobs: list[StreamPromptLogprobs]
    tokens: list[StreamTokens]
    finished: list[StreamFinished]
    refused: list[StreamRefused]


def start_stream_to_proto(stream_id: int, request: GenerateRequest) -> engine_pb2.SessionRequest:
    start = engine_pb2.StartStream(stream_id=stream_id, request=generate_request_to_proto(request))
    return engine_pb2.SessionRequest(start=start)


def cancel_stream_to_proto(stream_id: int, choice_indexes: Sequence[int] = ()) -> engine_pb2.SessionRequest:
    cancel = engine_pb2.CancelStream(stream_id=stream_id, choice_indexes=choice_indexes)
    return engine_pb2.SessionRequest(cancel=cancel)


def session_response_to_proto(
    tokens: Sequence[TokensOfStream],
    finished: Sequence[StreamFinished] = (),
    refused: Sequence[StreamRefused] = (),
    prompt_logprobs: Sequence[StreamPromptLogprobs] = (),
) -> engine_pb2.SessionResponse:
    choice_indexes = [entry.choice_index for entry in tokens]
    token_ids = [token_id for entry in tokens for token_id in entry.token_ids]
    scored = [index for index, entry in enumerate(tokens) if entry.logprobs]
    return engine_pb2.SessionResponse(
        stream_ids=[entry.stream_id for entry in tokens],
        choice_indexes=choice_indexes if any(choice_indexes) else (),
        first_indexes=[entry.first_index for entry in tokens],
        # No entry is empty, so with as many tokens as entries each has one.
        num_tokens=() if len(token_ids) == len(tokens) else [len(entry.token_ids) for entry in tokens],
        token_ids=token_ids,
        logprob_entries=scored,
        logprobs=[logprobs_to_proto(logprobs) for index in scored for logprobs in tokens[index].logprobs],
        finished=[
            engine_pb2.StreamFinished(
                stream_id=stream_id, choice_index=event.choice_index, finished=finished_to_proto(event)
            )
            for stream_id, event in finished
        ],
        refused=[
            engine_pb2.StreamRefused(
                stream_id=stream_id,
                status=to_grpc_status(error).value[0],
                message=error.message,
                param=error.param or "",
            )
            for stream_id, error in refused
        ],
        prompt_logprobs=[
            engine_pb2.StreamPromptLogprobs(stream_id=stream_id, logprobs=prompt_logprobs_to_proto(logprobs))
            for stream_id, logprobs in prompt_logprobs
        ],
    )


def session_response_from_proto(message: engine_pb2.SessionResponse) -> SessionEvents:
    """Raises ValueError if the columns do not fit each other."""
    return SessionEvents(
        prompt_logprobs=[
            StreamPromptLogprobs(entry.stream_id, prompt_logprobs_from_proto(entry.logprobs))
            for entry in message.prompt_logprobs
        ],
        tokens=_tokens(message),
        finished=[
            StreamFinished(end.stream_id, finished_from_proto(end.choice_index, end.finished))
            for end in message.finished
        ],
        refused=[
            StreamRefused(refusal.stream_id, error_from_number(refusal.status, refusal.message, refusal.param or None))
            for refusal in message.refused
        ],
    )


def _tokens(message: engine_pb2.SessionResponse) -> list[StreamTokens]:
    num_entries = len(message.stream_ids)
    nums_tokens = list(message.num_tokens) or [1] * num_entries
    token_ids = tuple(message.token_ids)
    if sum(nums_tokens) != len(token_ids):
        raise ValueError(f"{len(token_ids)} tokens came where {sum(nums_tokens)} were announced")
    logprobs = _logprobs_by_entry(message, nums_tokens)
    columns = zip(
        message.stream_ids,
        message.choice_indexes or repeat(0, num_entries),
        message.first_indexes,
        # A token for each is the rule.
        _cut(token_ids, nums_tokens) if message.num_tokens else zip(token_ids, strict=True),
        [logprobs.get(index, ()) for index in range(num_entries)] if logprobs else repeat((), num_entries),
        strict=True,
    )
    return list(map(StreamTokens._make, columns))


def _cut(token_ids: tuple[int, ...], nums_tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    start = 0
    for num_tokens in nums_tokens:
        yield token_ids[start : start + num_tokens]
        start += num_tokens


def _logprobs_by_entry(
    message: engine_pb2.SessionResponse, nums_tokens: Sequence[int]
) -> dict[int, tuple[TokenLogprobs, ...]]:
    scored = message.logprob_entries
    if not scored:
        return {}
    if max(scored) >= len(nums_tokens) or sum(nums_tokens[index] for index in scored) != len(message.logprobs):
        raise ValueError("the log-probabilities do not fit the tokens")
    values: Iterator[TokenLogprobs] = map(logprobs_from_proto, message.logprobs)
    return {index: tuple(next(values) for _ in range(nums_tokens[index])) for index in scored}
