"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gateway.answers.stream import EventStreamResponse
from gateway.answers.whole_answer import collect
from gateway.http.json_body import JsonRoute
from gateway.http.json_response import json_response
from gateway.openai.answer_schemas import ChatChoice, ChatCompletionResponse, ErrorResponse
from gateway.openai.chunk_schemas import ChatCompletionChunk
from gateway.openai.logprobs import chat_logprobs
from gateway.openai.message_deltas import assistant_message
from gateway.openai.prompt_logprobs import prompt_logprobs_json
from gateway.openai.schemas import ChatCompletionRequest
from gateway.openai.sse import ChatChunkEncoder, ChunkFrame
from gateway.requests.job import Job
from gateway.requests.translate import translate_chat
from gateway.routes.documentation import ERRORS, streamed
from gateway.runtime import Gateway, GatewayDependency, generating

router = APIRouter(route_class=JsonRoute)
_STREAMED = streamed(ChatCompletionResponse, TypeAdapter(ChatCompletionChunk | ErrorResponse), ends_with_done=True)


@router.post("/v1/chat/completions", responses=_STREAMED | ERRORS)
async def create_chat_completion(body: ChatCompletionRequest, request: Request, gateway: GatewayDependency) -> Response:
    job = await gateway.job(request, translate_chat, body, gateway.accepted(request, body.model))
    answer_id = f"chatcmpl-{body.request_id or uuid.uuid4().hex}"
    if body.stream:
        return _stream(gateway, job, answer_id, body)
    return await _whole(gateway, job, answer_id, body, request)


def _stream(gateway: Gateway, job: Job, answer_id: str, body: ChatCompletionRequest) -> Response:
    frame = ChunkFrame(body, answer_id, "chat.completion.chunk")
    return EventStreamResponse(gateway, job, answer_id, ChatChunkEncoder(frame, gateway.model.tokenizer, job))


async def _whole(gateway: Gateway, job: Job, answer_id: str, body: ChatCompletionRequest, request: Request) -> Response:
    async with generating(gateway, request.scope, request.receive, answer_id, job) as generation:
        answers = await collect(generation, job)
    tokenizer = gateway.model.tokenizer
    answer = ChatCompletionResponse(
        id=answer_id,
        created=int(time.time()),
        model=body.model,
        choices=[
            ChatChoice(
                index=index,
                message=assistant_message(answer, job.prompt_of(index).echo),
                logprobs=(
                    chat_logprobs(answer.scored, tokenizer, as_ids=job.tokens_as_ids) if job.with_logprobs else None
                ),
                finish_reason=answer.finish,
                stop_reason=answer.stop_reason,
                timeline=answer.timeline,
                token_ids=list(answer.token_ids) if job.return_token_ids else None,
            )
            for index, answer in enumerate(answers)
        ],
        usage=generation.counts.usage(),
        prompt_token_ids=list(job.prompts[0].token_ids) if job.return_token_ids else None,
    )
    shown = answer.model_dump()
    if job.num_prompt_logprobs is not None:
        scores = generation.prompt_scores
        (shown["prompt_logprobs"],) = await gateway.in_thread(prompt_logprobs_json, job, scores, tokenizer)
    return json_response(shown)
