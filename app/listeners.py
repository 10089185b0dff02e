"""Who reads the answers: a job whose answer nobody reads ends, and its place is free.

An answer is a stream of server-sent events: of a session of the page or of gradio's client, or of one call of the API.
Gradio ends a job when its open stream breaks off; a job whose stream nobody ever opens would be drawn to its end.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from app.gate import refuse
from app.line import Client

if TYPE_CHECKING:
    import gradio as gr

UNHEARD = 30.0  # seconds: long enough to type the second command of docs/app.md, short enough to wait for
_STREAM = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?compare/(\w+))/?")

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Listeners:
    """The open streams by session; a call of the API is a session of its own, named by its event."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def gone(self, session: str, *, patience: float = UNHEARD) -> Callable[[], bool]:
        """A question to ask now and then: has nobody listened to `session` for `patience` seconds?"""
        heard = time.monotonic()

        def is_gone() -> bool:
            nonlocal heard
            if self._open[session]:
                heard = time.monotonic()
            return time.monotonic() - heard > patience

        return is_gone

    def middleware(
        self, app: Callable[..., Awaitable[None]], expected: Callable[[str], bool]
    ) -> Callable[..., Awaitable[None]]:
        """ASGI middleware that counts the streams while they are open; 404 for one on which nothing will come."""

        async def counted(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            session = _session_of(scope)
            if session is None:
                await app(scope, receive, send)
                return
            if not expected(session):
                await refuse(send, 404, "there is no such job, or its answer has been read; send the request again.")
                return
            self._open[session] += 1
            try:
                await app(scope, receive, send)
            finally:
                self._open[session] -= 1
                if not self._open[session]:
                    del self._open[session]

        return counted


def _session_of(scope: dict[str, Any]) -> str | None:
    """The session whose answers a request reads."""
    found = _STREAM.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
    if found is None:
        return None
    named = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])
    return found[1] or named[-1] or None


def client_of(request: gr.Request) -> Client:
    """Whose turn a request takes: its address and session. Behind this machine's own address all may stand, so that
    there each session counts as one."""
    host, session = request.client.host if request.client else "", request.session_hash or ""
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = True
    return Client(session if is_own else host, session)
