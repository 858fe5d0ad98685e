"""GET /docs: a page that shows /openapi.json and sends requests. It is whole in itself, and works without a network."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)
_PAGE = Path(__file__).with_name("docs_page.html").read_text(encoding="utf-8")
# The browser enforces what the page promises: it asks this server alone.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}


@router.get("/docs")
async def docs() -> HTMLResponse:
    return HTMLResponse(_PAGE, headers=_HEADERS)
