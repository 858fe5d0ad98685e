"""POST /tokenize and /detokenize, and GET /tokenizer_info, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request

from gateway.http.json_body import JsonRoute
from gateway.openai.answer_schemas import DetokenizeResponse, TokenizeResponse
from gateway.openai.info_schemas import TokenizerInfo
from gateway.openai.schemas import DetokenizeRequest, TokenizeRequest
from gateway.requests.prompt_tokens import encode
from gateway.requests.unserved_fields import refuse_unserved
from gateway.routes.documentation import COMMON_ERRORS, ERRORS_OF_TEXT
from gateway.runtime import GatewayDependency
from gateway.served_model import ServedModel
from pageloom.chats.offered_tools import offered_tools, shown_tools
from pageloom.chats.rendering import render_messages
from pageloom.errors import InvalidRequest
from pageloom.plan import ModelInfo
from pageloom.sampling_params import check_token_ids

router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize", responses=ERRORS_OF_TEXT)
async def tokenize(body: TokenizeRequest, request: Request, gateway: GatewayDependency) -> TokenizeResponse:
    return await gateway.prepared(request, _tokenize, body, gateway.model, gateway.engine.last_known_model)


@router.post("/detokenize", responses=ERRORS_OF_TEXT)
async def detokenize(body: DetokenizeRequest, gateway: GatewayDependency) -> DetokenizeResponse:
    if body.model is not None:
        gateway.model.require_name(body.model)
    info = gateway.engine.last_known_model
    tokenizer = gateway.model.tokenizer
    check_token_ids("tokens", body.tokens, tokenizer.vocab_size if info is None else info.vocab_size)
    text = await gateway.in_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return DetokenizeResponse(prompt=text)


@router.get("/tokenizer_info", responses=COMMON_ERRORS)
async def tokenizer_info(gateway: GatewayDependency) -> TokenizerInfo:
    model, info = gateway.model, gateway.engine.last_known_model
    special = model.tokenizer.special_tokens
    return TokenizerInfo(
        vocab_size=model.tokenizer.vocab_size,
        model_max_length=None if info is None else info.max_model_len,
        bos_token=special.get("bos_token"),
        eos_token=special.get("eos_token"),
        pad_token=special.get("pad_token"),
        unk_token=special.get("unk_token"),
        chat_template=None if model.chat_template is None else model.chat_template.source,
    )


def _tokenize(body: TokenizeRequest, model: ServedModel, info: ModelInfo | None) -> TokenizeResponse:
    if body.model is not None:
        model.require_name(body.model)
    refuse_unserved(body)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        # A prompt is framed unless told otherwise; a chat template frames its messages itself.
        text, framed, param = body.prompt, body.add_special_tokens is not False, "prompt"
    else:
        tools = shown_tools(offered_tools(body.tools or ()))
        rendered = render_messages(body.messages or (), body, model, tools)
        text, framed, param = rendered, bool(body.add_special_tokens), "messages"
    token_ids = encode(text, model, info, param, add_special_tokens=framed)
    return TokenizeResponse(
        count=len(token_ids),
        max_model_len=None if info is None else info.max_model_len,
        tokens=token_ids,
        token_strs=[model.tokenizer.token(token_id) for token_id in token_ids] if body.return_token_strs else None,
    )
