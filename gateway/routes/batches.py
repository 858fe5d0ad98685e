"""/v1/batches: create, list, retrieve, cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway.batches.schemas import BatchList, BatchObject, CreateBatchRequest
from gateway.http.json_body import JsonRoute
from gateway.http.middleware import record_of
from gateway.http.pages import Direction, page_of
from gateway.requests.terms import read_terms
from gateway.routes.documentation import ERRORS_OF_LOOKUPS, ERRORS_OF_UPLOADS, ERRORS_WITHOUT_BODY
from gateway.runtime import GatewayDependency

router = APIRouter(route_class=JsonRoute)
MAX_LISTED = 100


@router.post("/v1/batches", responses=ERRORS_OF_UPLOADS)
async def create_batch(body: CreateBatchRequest, request: Request, gateway: GatewayDependency) -> BatchObject:
    gateway.lifecycle.require_accepting()
    terms = read_terms(request.headers, record_of(request.scope).started_s)
    return await gateway.batches.create(body, terms.tenant)


@router.get("/v1/batches", responses=ERRORS_OF_LOOKUPS)
async def list_batches(
    gateway: GatewayDependency,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
    order: Direction = "desc",
) -> BatchList:
    page = page_of(gateway.batches.all(), after=after, limit=limit, order=order)
    return BatchList(data=page.items, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more)


@router.get("/v1/batches/{batch_id}", responses=ERRORS_WITHOUT_BODY)
async def retrieve_batch(batch_id: str, gateway: GatewayDependency) -> BatchObject:
    return gateway.batches.get(batch_id)


@router.post("/v1/batches/{batch_id}/cancel", responses=ERRORS_OF_LOOKUPS)
async def cancel_batch(batch_id: str, gateway: GatewayDependency) -> BatchObject:
    return await gateway.batches.cancel(batch_id)
