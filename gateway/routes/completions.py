"""POST /v1/completions. Choices are numbered prompt by prompt: prompt * n + choice."""

from __future__ import annotations

import time
import uuid

import orjson
from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gateway.answers.generation import Generation
from gateway.answers.stream import EventStreamResponse
from gateway.answers.whole_answer import ChoiceAnswer, collect
from gateway.http.json_body import JsonRoute
from gateway.http.json_response import encoded_response
from gateway.openai.answer_schemas import CompletionChoice, CompletionResponse, ErrorResponse
from gateway.openai.chunk_schemas import CompletionChunk
from gateway.openai.logprobs import completion_logprobs
from gateway.openai.prompt_logprobs import prompt_logprobs_json
from gateway.openai.schemas import CompletionRequest
from gateway.openai.sse import ChunkFrame, CompletionChunkEncoder
from gateway.requests.job import Job
from gateway.requests.translate import translate_completion
from gateway.routes.documentation import ERRORS, streamed
from gateway.runtime import Gateway, GatewayDependency, generating

router = APIRouter(route_class=JsonRoute)
_STREAMED = streamed(CompletionResponse, TypeAdapter(CompletionChunk | ErrorResponse), ends_with_done=True)


@router.post("/v1/completions", responses=_STREAMED | ERRORS)
async def create_completion(body: CompletionRequest, request: Request, gateway: GatewayDependency) -> Response:
    job = await gateway.job(request, translate_completion, body, gateway.accepted(request, body.model))
    answer_id = f"cmpl-{body.request_id or uuid.uuid4().hex}"
    if body.stream:
        return _stream(gateway, job, answer_id, body)
    return await _whole(gateway, job, answer_id, body, request)


def _stream(gateway: Gateway, job: Job, answer_id: str, body: CompletionRequest) -> Response:
    frame = ChunkFrame(body, answer_id, "text_completion")
    return EventStreamResponse(gateway, job, answer_id, CompletionChunkEncoder(frame, gateway.model.tokenizer, job))


async def _whole(gateway: Gateway, job: Job, answer_id: str, body: CompletionRequest, request: Request) -> Response:
    async with generating(gateway, request.scope, request.receive, answer_id, job) as generation:
        answers = await collect(generation, job)
    if job.scores_prompts:
        # A prompt has many tokens at once.
        shown = await gateway.in_thread(_shown, gateway, job, generation, answers, answer_id, body)
    else:
        shown = _shown(gateway, job, generation, answers, answer_id, body)
    return encoded_response(shown)


def _shown(
    gateway: Gateway,
    job: Job,
    generation: Generation,
    answers: list[ChoiceAnswer],
    answer_id: str,
    body: CompletionRequest,
) -> bytes:
    tokenizer = gateway.model.tokenizer
    answer = CompletionResponse(
        id=answer_id,
        created=int(time.time()),
        model=body.model,
        choices=[
            CompletionChoice(
                index=index,
                text=job.prompt_of(index).echo + answer.text,
                logprobs=(
                    completion_logprobs(answer.scored, tokenizer, answer.echoed, as_ids=job.tokens_as_ids)
                    if job.with_logprobs
                    else None
                ),
                finish_reason=answer.finish,
                stop_reason=answer.stop_reason,
                timeline=answer.timeline,
                token_ids=list(answer.token_ids) if job.return_token_ids else None,
                prompt_token_ids=list(job.prompt_of(index).token_ids) if job.return_token_ids else None,
            )
            for index, answer in enumerate(answers)
        ],
        usage=generation.counts.usage(),
    )
    shown = answer.model_dump()
    if job.num_prompt_logprobs is not None:
        of_prompts = prompt_logprobs_json(job, generation.prompt_scores, tokenizer)
        for index, choice in enumerate(shown["choices"]):
            choice["prompt_logprobs"] = of_prompts[index // job.n]
    return orjson.dumps(shown)
