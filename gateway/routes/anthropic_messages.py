"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gateway.answers.stream import EventStreamResponse, encode_whole
from gateway.anthropic.answer_schemas import MessageObject, MessageStreamEvent, TokenCount
from gateway.anthropic.conversion import FIELD_NAMES, to_chat
from gateway.anthropic.encoder import MessageEncoder
from gateway.anthropic.schemas import CountTokensRequest, MessagesRequest, PromptFields
from gateway.http.json_body import JsonRoute
from gateway.http.json_response import json_response
from gateway.requests.field_names import renamed_fields, renamed_job
from gateway.requests.job import Job
from gateway.requests.terms import Terms
from gateway.requests.translate import translate_chat
from gateway.requests.unserved_fields import UNSERVED_IN_MESSAGES, refuse_unserved
from gateway.routes.documentation import ANTHROPIC_ERRORS, streamed
from gateway.runtime import Gateway, GatewayDependency, generating
from gateway.served_model import ServedModel
from pageloom.plan import ModelInfo

router = APIRouter(route_class=JsonRoute)
_STREAMED = streamed(MessageObject, TypeAdapter(MessageStreamEvent))


@router.post("/v1/messages", responses=_STREAMED | ANTHROPIC_ERRORS)
async def create_message(body: MessagesRequest, request: Request, gateway: GatewayDependency) -> Response:
    job = await _job(gateway, request, body, gateway.accepted(request, body.model))
    encoder = MessageEncoder(body.model, job.num_prompt_tokens)
    if body.stream:
        return EventStreamResponse(gateway, job, encoder.message_id, encoder)
    async with generating(gateway, request.scope, request.receive, encoder.message_id, job) as generation:
        await encode_whole(generation, encoder)
    return json_response(encoder.message)


@router.post("/v1/messages/count_tokens", response_model=TokenCount, responses=ANTHROPIC_ERRORS)
async def count_tokens(body: CountTokensRequest, request: Request, gateway: GatewayDependency) -> Response:
    gateway.model.require_name(body.model)
    job = await _job(gateway, request, body, Terms())
    return json_response({"input_tokens": job.num_prompt_tokens})


async def _job(gateway: Gateway, request: Request, body: PromptFields, terms: Terms) -> Job:
    with renamed_fields(FIELD_NAMES):
        job = await gateway.job(request, _translate, body, terms)
    return renamed_job(job, FIELD_NAMES)


def _translate(body: PromptFields, terms: Terms, model: ServedModel, info: ModelInfo) -> Job:
    refuse_unserved(body, UNSERVED_IN_MESSAGES)
    return translate_chat(to_chat(body), terms, model, info)
