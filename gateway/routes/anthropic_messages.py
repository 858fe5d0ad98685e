"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answers.stream import EventStreamResponse, encode_whole
from gateway.anthropic.conversion import FIELD_NAMES, to_chat
from gateway.anthropic.encoder import MessageEncoder
from gateway.anthropic.schemas import CountTokensRequest, MessagesRequest, PromptFields
from gateway.http.json_body import JsonRoute
from gateway.http.middleware import record_of
from gateway.requests.field_names import renamed_fields, renamed_job
from gateway.requests.job import Job
from gateway.requests.terms import Terms, read_terms
from gateway.requests.translate import translate_chat
from gateway.requests.unserved_fields import UNSERVED_IN_MESSAGES, refuse_unserved
from gateway.routes.documentation import ANTHROPIC_ERRORS, STREAMED_EVENTS
from gateway.runtime import Gateway, GatewayDependency, generating

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/messages", responses=STREAMED_EVENTS | ANTHROPIC_ERRORS)
async def create_message(body: MessagesRequest, request: Request, gateway: GatewayDependency) -> Response:
    gateway.model.require_name(body.model)
    gateway.lifecycle.require_accepting()
    job = await _job(gateway, body, read_terms(request.headers, record_of(request.scope).started_s))
    encoder = MessageEncoder(body.model, job.num_prompt_tokens)
    if body.stream:
        return EventStreamResponse(gateway, job, encoder.message_id, encoder)
    async with generating(gateway, request.scope, request.receive, encoder.message_id, job) as generation:
        await encode_whole(generation, encoder)
    return _json(encoder.message)


@router.post("/v1/messages/count_tokens", responses=ANTHROPIC_ERRORS)
async def count_tokens(body: CountTokensRequest, gateway: GatewayDependency) -> Response:
    gateway.model.require_name(body.model)
    job = await _job(gateway, body, Terms())
    return _json({"input_tokens": job.num_prompt_tokens})


async def _job(gateway: Gateway, body: PromptFields, terms: Terms) -> Job:
    refuse_unserved(body, UNSERVED_IN_MESSAGES)
    with renamed_fields(FIELD_NAMES):
        job = await gateway.job(translate_chat, to_chat(body), terms)
    return renamed_job(job, FIELD_NAMES)


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
