"""A limit for the size of a request's body: the server would read any length into memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from app.gate import refuse

BODY_BYTES = 2_000_000
_TOO_LONG = "the request is longer than 2 MB; shorten it."

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class BodyLimit:
    """ASGI middleware: answers 413 as soon as a body is longer than `limit` bytes, announced or not."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int = BODY_BYTES) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > self.limit:
            await refuse(send, 413, _TOO_LONG)
            return
        read, is_refused = 0, False

        async def counted() -> dict[str, Any]:
            nonlocal read, is_refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit and not is_refused:
                is_refused = True
                await refuse(send, 413, _TOO_LONG)
            return {"type": "http.disconnect"} if is_refused else message

        async def unless_refused(message: dict[str, Any]) -> None:
            if not is_refused:
                await send(message)

        await self.app(scope, counted, unless_refused)
