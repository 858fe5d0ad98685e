"""/v1/files: upload, list, retrieve, content, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, UploadFile
from starlette.responses import FileResponse, Response

from gateway.batches.schemas import MAX_LIFETIME_S, FileDeleted, FileList, FileObject, Purpose
from gateway.http.pages import Direction, page_of
from gateway.http.upload import UploadRoute
from gateway.routes.documentation import ERRORS_OF_LOOKUPS, ERRORS_OF_UPLOADS, ERRORS_WITHOUT_BODY
from gateway.runtime import GatewayDependency
from pageloom.errors import InvalidRequest

router = APIRouter(route_class=UploadRoute)
MAX_LISTED = 10_000
MAX_FILENAME_CHARS = 255


@router.post("/v1/files", responses=ERRORS_OF_UPLOADS)
async def upload_file(
    gateway: GatewayDependency,
    file: UploadFile,
    purpose: Annotated[str, Form()],
    anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
    lifetime_s: Annotated[int | None, Form(alias="expires_after[seconds]", ge=1, le=MAX_LIFETIME_S)] = None,
) -> FileObject:
    if purpose != "batch":
        raise InvalidRequest(f"purpose must be batch, not {purpose[:80]!r}", param="purpose")
    if (anchor is None) != (lifetime_s is None):
        raise InvalidRequest("expires_after needs both anchor and seconds", param="expires_after")
    num_bytes = file.size or 0
    if num_bytes > gateway.config.max_file_bytes:
        raise InvalidRequest(f"the file is larger than {gateway.config.max_file_bytes} bytes", param="file")
    filename = (file.filename or "")[:MAX_FILENAME_CHARS]
    return await gateway.batches.files.add(file.file, num_bytes, filename, lifetime_s)


@router.get("/v1/files", responses=ERRORS_OF_LOOKUPS)
async def list_files(
    gateway: GatewayDependency,
    purpose: Purpose | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
    order: Direction = "desc",
) -> FileList:
    files = gateway.batches.files.all()
    if purpose is not None:
        files = [file for file in files if file.purpose == purpose]
    page = page_of(files, after=after, limit=limit, order=order)
    return FileList(data=page.items, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more)


@router.get("/v1/files/{file_id}", responses=ERRORS_WITHOUT_BODY)
async def retrieve_file(file_id: str, gateway: GatewayDependency) -> FileObject:
    return gateway.batches.files.get(file_id)


@router.get(
    "/v1/files/{file_id}/content",
    response_class=Response,
    responses=ERRORS_WITHOUT_BODY | {200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}},
)
async def file_content(file_id: str, gateway: GatewayDependency) -> Response:
    path = gateway.batches.files.content_path(file_id)
    return FileResponse(path, media_type="application/jsonl")


@router.delete("/v1/files/{file_id}", responses=ERRORS_OF_LOOKUPS)
async def delete_file(file_id: str, gateway: GatewayDependency) -> FileDeleted:
    await gateway.batches.files.delete(file_id)
    return FileDeleted(id=file_id)
