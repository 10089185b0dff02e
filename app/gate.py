"""What of gradio's server can be reached: the page, its events and the API, nothing else.

Gradio also has routes that serve files, fetch addresses for the caller, take uploads and edit the running app. They
are limited there, but a page that names nothing of the server's needs none of them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

_OPEN = re.compile(
    r"/|/rulers|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/(assets|static|svelte)/[\w./@+-]+"
    r"|/gradio_api/(info|openapi\.json|app_id|user|login_check|startup-events|theme\.css)/?"
    r"|/gradio_api/(queue/join|queue/data|cancel|reset|heartbeat/\w+)/?"
    r"|/gradio_api/(run|api|call|call/v2)/[\w-]+(/\w+)?/?"
)


class Gate:
    """ASGI middleware: answers 404 to every path that the page and the API do not use."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"].removeprefix(scope.get("root_path", ""))):
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"there is no such page."})
            return
        await self.app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether a path (unquoted) is one of the page's; a `..` never is.

    >>> is_open("/"), is_open("/gradio_api/call/compare/0f3a"), is_open("/gradio_api/file=/etc/passwd")
    (True, True, False)
    """
    return _OPEN.fullmatch(path) is not None and ".." not in path
