"""What of gradio's server can be reached, under which names, from whose pages, how much is sent; the page's head.

Gradio also has routes that serve files, fetch addresses for the caller, take uploads and edit the running app. They
are limited there, but a page that names nothing of the server's needs none of them.

A page of another site can have the reader's browser ask this server, which listens on the reader's own machine. Such a
request says whose page it comes from (`Origin`, `Sec-Fetch-Site`), unless the site's name was turned to this machine's
address in the meantime (DNS rebinding): then it names that site as its `Host`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from app.request import Settings

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
App = Callable[..., Awaitable[None]]

_OPEN = re.compile(
    r"/|/rulers|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/(assets|static|svelte)/[\w./@+-]+"
    r"|/gradio_api/(info|openapi\.json|app_id|user|login_check|startup-events|theme\.css)/?"
    r"|/gradio_api/(queue/join|queue/data|cancel|reset|heartbeat/\w+)/?"
    r"|/gradio_api/((run|api)/[\w-]+|call(/v2)?/compare(/\w+)?)/?"
)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(:\d{1,5})?", re.IGNORECASE)


class Hosts:
    """The names under which the app answers, from what it listens on and what the operator allows."""

    def __init__(self, settings: Settings) -> None:
        self.named = {name.lower().rstrip(".") for name in settings.allowed_hosts}
        self._is_local = settings.is_loopback
        here = socket.gethostname().lower()
        self._own = {"localhost"} if self._is_local else {"localhost", settings.host.lower(), here, f"{here}.local"}

    def allows(self, host: str) -> bool:
        """Whether `host`, the value of a Host header, is the app's: a name that it has, or an address as a number.

        No other site's page can have a number for its name, so that an app on a network answers under all of them; an
        app of this machine alone answers under this machine's.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower()
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback or not self._is_local or name in self.named
        except ValueError:
            return name in self._own or name in self.named

    def is_own_page(self, origin: str, host: str) -> bool:
        """Whether `origin` is that of a page of the app that was asked for as `host`; a proxy may have changed that."""
        try:
            asked = urlsplit(origin)
            return _at(asked.netloc) == _at(host) or asked.hostname in self.named
        except ValueError:
            return False


def _at(host: str) -> str:
    return re.sub(r":(80|443)$", "", host.lower())


class Gate:
    """ASGI middleware: answers 403 to other names and other sites' pages, 404 to what the app does not use."""

    def __init__(self, app: App, hosts: Hosts, framed_by: Sequence[str] = ()) -> None:
        self.app, self.hosts = app, hosts
        by = " ".join(framed_by) or "'none'"
        self._framing = [(b"content-security-policy", f"frame-ancestors {by}".encode())]
        if not framed_by:  # the older header, for browsers that do not know the other, has no list
            self._framing.append((b"x-frame-options", b"DENY"))

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # gradio has no sockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def framed(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message.get("headers", ()), *self._framing]}
            await send(message)

        if fault := self._fault(scope):
            await refuse(framed, 403, fault)
        elif is_open(scope["path"].removeprefix(scope.get("root_path", ""))):
            await self.app(scope, receive, framed)
        else:
            await refuse(framed, 404, "there is no such page.")

    def _fault(self, scope: dict[str, Any]) -> str | None:
        """Why a request is not the app's own, in one sentence."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        host = headers.get(b"host", [])
        if len(host) != 1 or not self.hosts.allows(host[0]):
            said = ascii(host[0][:80]) if host else "missing"
            return (
                f"the request's Host is {said}, which is not a name of this app; use the address that it printed, or "
                "start it with --allowed-hosts and this name."
            )
        (site,), (mode,) = (headers.get(name, [""])[:1] for name in (b"sec-fetch-site", b"sec-fetch-mode"))
        is_foreign = site in ("cross-site", "same-site") and mode != "navigate"
        if is_foreign or not all(self.hosts.is_own_page(origin, host[0]) for origin in headers.get(b"origin", ())):
            return "the request comes from another site's page, and only the app's own may ask; open the app itself."
        return None


async def refuse(send: Send, status: int, sentence: str) -> None:
    """Answer with one sentence and nothing else."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})


def is_open(path: str) -> bool:
    """Whether a path (unquoted) is one of the page's; a `..` never is.

    >>> is_open("/"), is_open("/gradio_api/call/compare/0f3a"), is_open("/gradio_api/file=/etc/passwd")
    (True, True, False)
    """
    return _OPEN.fullmatch(path) is not None and ".." not in path


BODY_BYTES = 2_000_000
_TOO_LONG = "the request is longer than 2 MB; shorten it."


class BodyLimit:
    """ASGI middleware: answers 413 as soon as a body is longer than `limit` bytes, announced or not."""

    def __init__(self, app: App, limit: int = BODY_BYTES) -> None:
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


class Preview:
    """ASGI middleware: puts the page's own title and description where gradio has its own, for previews of a link.

    Programs that show a link's preview read the page's head as it is served, and run no script.
    """

    def __init__(self, app: App, title: str, description: str) -> None:
        self.app = app
        self.texts = (title.encode(), description.encode())

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) not in ("", "/"):
            await self.app(scope, receive, send)
            return
        start: dict[str, Any] = {}
        body = bytearray()

        async def collected(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                content = self._described(bytes(body))
                kept = [header for header in start["headers"] if header[0].lower() != b"content-length"]
                length = (b"content-length", str(len(content)).encode())
                await send(start | {"headers": [*kept, length]})
                await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, collected)

    def _described(self, page: bytes) -> bytes:
        head, begin, rest = page.partition(b"<style>")
        style, end, rest = rest.partition(b"window.gradio_config")
        title, description = self.texts
        head, style = (
            re.sub(rb'<meta\s+(?:property="og|name="twitter):[^>]*>\s*', b"", part) for part in (head, style)
        )
        new = b"".join(
            b'<meta %s="%s" content="%s" />' % (kind, name, text)
            for kind, name, text in (
                (b"name", b"description", description),
                (b"property", b"og:title", title),
                (b"property", b"og:description", description),
                (b"property", b"og:type", b"website"),
                (b"name", b"twitter:card", b"summary"),
            )
        )
        return head + b"<title>%s</title>" % title + new + begin + style + end + rest if end else page
