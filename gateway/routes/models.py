"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.openai.answer_schemas import ModelCard, ModelList
from gateway.routes.documentation import COMMON_ERRORS, ERRORS_WITHOUT_BODY
from gateway.runtime import Gateway, GatewayDependency

router = APIRouter()


@router.get("/v1/models", responses=COMMON_ERRORS)
async def list_models(gateway: GatewayDependency) -> ModelList:
    return ModelList(data=[_card(gateway, name) for name in gateway.model.names])


# Names such as "org/model" contain slashes.
@router.get("/v1/models/{model_id:path}", responses=ERRORS_WITHOUT_BODY)
async def retrieve_model(model_id: str, gateway: GatewayDependency) -> ModelCard:
    gateway.model.require_name(model_id)
    return _card(gateway, model_id)


def _card(gateway: Gateway, name: str) -> ModelCard:
    info = gateway.engine.last_known_model
    return ModelCard(
        id=name,
        created=gateway.model.created,
        root=gateway.model.root,
        max_model_len=None if info is None else info.max_model_len,
    )
