"""POST /v1/responses, and what can be done with a stored response: GET, cancel, DELETE, input_items."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response, StreamingResponse

from gateway.answers.stream import EVENT_STREAM_HEADERS, EventStreamResponse, encode_whole
from gateway.http.json_body import JsonRoute
from gateway.http.json_response import json_response
from gateway.http.pages import Direction
from gateway.requests.field_names import renamed_fields, renamed_job
from gateway.requests.job import Job
from gateway.responses.answer_schemas import InputItemList, ResponseDeleted, ResponseObject, ResponseStreamEvent
from gateway.responses.background import cancel, start_in_background
from gateway.responses.conversion import FIELD_NAMES, items_of
from gateway.responses.encoder import ResponseEncoder
from gateway.responses.input_list import listed_items
from gateway.responses.response_object import ResponseDraft
from gateway.responses.schemas import InputItem, ResponseRequest
from gateway.responses.store import ResponseStore, StoredResponse
from gateway.responses.translate import translate_response
from gateway.routes.documentation import ERRORS, ERRORS_OF_LOOKUPS, ERRORS_WITHOUT_BODY, streamed
from gateway.runtime import Gateway, GatewayDependency, generating
from pageloom.errors import InvalidRequest

router = APIRouter(route_class=JsonRoute)
MAX_LISTED = 100
_STREAMED = streamed(ResponseObject, TypeAdapter(ResponseStreamEvent))


@router.post("/v1/responses", responses=_STREAMED | ERRORS)
async def create_response(body: ResponseRequest, request: Request, gateway: GatewayDependency) -> Response:
    terms = gateway.accepted(request, body.model)
    if body.background:
        gateway.responses.require_background()
    if body.background and body.store is False:
        raise InvalidRequest("background needs store to be true", param="background")
    conversation = await _conversation(gateway, body)
    with renamed_fields(FIELD_NAMES):
        job = await gateway.job(request, partial(translate_response, conversation), body, terms)
    job = renamed_job(job, FIELD_NAMES)
    draft = ResponseDraft(f"resp_{uuid.uuid4().hex}", body)
    encoder = ResponseEncoder(draft, gateway.model.tokenizer, with_logprobs=job.with_logprobs)
    if body.background:
        return _in_background(gateway, conversation, job, encoder, stream=bool(body.stream))
    if body.store is not False:
        encoder.on_end = lambda response: gateway.responses.add(response, conversation)
    if body.stream:
        return EventStreamResponse(gateway, job, draft.id, encoder)
    return await _whole(gateway, request, job, encoder)


@router.get("/v1/responses/{response_id}", responses=_STREAMED | ERRORS_OF_LOOKUPS)
async def retrieve_response(
    response_id: str,
    gateway: GatewayDependency,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    stored = await _stored(gateway, response_id)
    if not stream:
        return json_response(stored.response)
    if stored.task is None:
        raise InvalidRequest("only a response that was made with background=true can be streamed later", param="stream")
    return _event_stream(stored.follow(starting_after + 1))


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject, responses=ERRORS_OF_LOOKUPS)
async def cancel_response(response_id: str, gateway: GatewayDependency) -> Response:
    stored = await _stored(gateway, response_id)
    if stored.task is None:
        raise InvalidRequest("only a response that was made with background=true can be cancelled", param="response_id")
    await cancel(stored)
    return json_response(stored.response)


@router.delete("/v1/responses/{response_id}", response_model=ResponseDeleted, responses=ERRORS_WITHOUT_BODY)
async def delete_response(response_id: str, gateway: GatewayDependency) -> Response:
    await cancel(gateway.responses.remove(response_id))
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", response_model=InputItemList, responses=ERRORS_OF_LOOKUPS)
async def list_input_items(
    response_id: str,
    gateway: GatewayDependency,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
    order: Direction = "desc",
) -> Response:
    stored = await _stored(gateway, response_id)
    return json_response(listed_items(stored, after=after, limit=limit, order=order))


async def _stored(gateway: Gateway, response_id: str) -> StoredResponse:
    """Raises NotFound."""
    store = gateway.responses
    if isinstance(store, ResponseStore):
        return store.get(response_id)
    # What is on disk takes a while.
    return await gateway.in_thread(store.get, response_id)


async def _conversation(gateway: Gateway, body: ResponseRequest) -> list[InputItem]:
    if body.previous_response_id is None:
        return items_of(body)
    with renamed_fields({"response_id": "previous_response_id"}):
        stored = await _stored(gateway, body.previous_response_id)
    if not stored.ended:
        raise InvalidRequest("the previous response has not ended yet", param="previous_response_id")
    return stored.next_conversation + items_of(body)


def _in_background(
    gateway: Gateway, conversation: list[InputItem], job: Job, encoder: ResponseEncoder, *, stream: bool
) -> Response:
    store = gateway.responses
    assert isinstance(store, ResponseStore), "another has refused it"
    store.require_room()
    stored = store.add(encoder.response, conversation)
    queued = encoder.response
    start_in_background(gateway, store, stored, job, encoder)
    return _event_stream(stored.follow(0)) if stream else json_response(queued)


async def _whole(gateway: Gateway, request: Request, job: Job, encoder: ResponseEncoder) -> Response:
    async with generating(gateway, request.scope, request.receive, encoder.response_id, job) as generation:
        await encode_whole(generation, encoder)
    return json_response(encoder.response)


def _event_stream(events: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(events, headers=EVENT_STREAM_HEADERS)
