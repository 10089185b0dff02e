"""The address that the page's script asks while a person types: POST /rulers with the prompt as plain text.

It stands beside gradio's own events because those cost tens of milliseconds each, and the rulers follow every key.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from app.models import Models
from app.rulers import rulers_html


def ruler_route(models: Models) -> Route:
    """The route: answers with the rulers' HTML, or one sentence in their place; keeps nothing."""

    async def rulers(request: Request) -> HTMLResponse:
        prompt = (await request.body()).decode("utf-8", errors="replace")
        return HTMLResponse(await run_in_threadpool(rulers_html, prompt, models))

    return Route("/rulers", rulers, methods=["POST"], include_in_schema=False)
