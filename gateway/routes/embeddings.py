"""POST /v1/embeddings."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answers.embeddings import embed
from gateway.http.json_body import JsonRoute
from gateway.http.json_response import encoded_response
from gateway.http.middleware import record_of
from gateway.metrics import RequestObserver
from gateway.openai.embedding_schemas import EmbeddingRequest, EmbeddingResponse
from gateway.openai.vectors import embeddings_json
from gateway.requests.translate_embeddings import translate_embeddings
from gateway.routes.documentation import ERRORS
from gateway.runtime import GatewayDependency, at_engine

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/embeddings", response_model=EmbeddingResponse, responses=ERRORS)
async def create_embeddings(body: EmbeddingRequest, request: Request, gateway: GatewayDependency) -> Response:
    terms = gateway.accepted(request, body.model)
    job = await gateway.prepared(
        request, translate_embeddings, body, terms, gateway.model, gateway.engine.require_model()
    )
    answer_id = f"embd-{uuid.uuid4().hex}"
    started_s = record_of(request.scope).started_s
    observer = RequestObserver(gateway.metrics, started_s, job.num_prompt_tokens, len(job.prompts))
    async with at_engine(gateway, request.scope, request.receive, answer_id, observer):
        max_at_once = gateway.config.limits.max_prompts
        vectors = await embed(gateway.client, answer_id, job, observer, max_at_once=max_at_once)
    shown = await gateway.in_thread(
        embeddings_json,
        vectors,
        dimensions=body.dimensions,
        normalize=body.normalize is not False,
        as_base64=body.encoding_format == "base64",
        rest={
            "id": answer_id,
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "usage": {"prompt_tokens": job.num_prompt_tokens, "total_tokens": job.num_prompt_tokens},
        },
    )
    return encoded_response(shown)
