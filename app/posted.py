"""What is posted to gradio's routes, checked before gradio reads it: a fault is 400 and one sentence.

Gradio answers most of these with 500 and shows the operator a traceback, as if the app were broken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from app.request import check_request
from app.settings import Settings

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from starlette.responses import JSONResponse

ARGUMENTS = ("prompt", "seed", "seeds", "steps", "guidance", "negative", "encoders", "side")
_BY_NAME = "/gradio_api/call/v2/compare"
_IN_ORDER = "/gradio_api/call/compare"
_EVENTS = re.compile(r"/gradio_api/(queue/join|(run|api)/[\w-]+)")

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Check = Callable[[str, bytes], None]


class Posted:
    """ASGI middleware: hands on what `check` takes, answers 400 with the sentence of its ValueError otherwise."""

    def __init__(self, app: Callable[..., Awaitable[None]], check: Check) -> None:
        self.app, self.check = app, check

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith("/gradio_api/"):
            await self.app(scope, receive, send)
            return
        body, is_whole = bytearray(), False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        try:
            self.check(scope["path"].rstrip("/"), bytes(body))
        except ValueError as error:
            content = json.dumps({"detail": str(error)}).encode()
            kind = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 400, "headers": kind})
            await send({"type": "http.response.body", "body": content})
            return
        left = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> dict[str, Any]:
            return left.pop() if left else await receive()

        await self.app(scope, again, _told(send) if _EVENTS.fullmatch(scope["path"].rstrip("/")) else send)


def _told(send: Send) -> Send:
    """`send`, with 400 for the 500 that gradio answers a refused event with; a real failure has no sentence there."""
    held: list[dict[str, Any]] = []

    async def send_on(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500:
            held.append(message)
            return
        if held:
            start = held.pop()
            is_told = not re.match(rb'\{"error": ?null', message.get("body", b""))
            await send(start | {"status": 400 if is_told else 500})
        await send(message)

    return send_on


def check_posted(events: Mapping[int, int], settings: Settings) -> Check:
    """What `Posted` asks. `events`: the number of values that each of the page's events takes, by its number."""

    def check(path: str, body: bytes) -> None:
        raw = _read(body)
        if path == _BY_NAME:
            check_request(given(raw), settings)
        elif path == _IN_ORDER:
            check_request(given(_named(raw)), settings)
        elif _EVENTS.fullmatch(path):
            _check_event(raw, events)

    return check


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of /compare without those whose null stands for the default."""
    return {name: value for name, value in arguments.items() if value is not None or name not in ("steps", "guidance")}


def _read(body: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(body, parse_int=_whole)
    except (ValueError, RecursionError):
        raise ValueError("the request's body is not JSON; send one JSON object, as docs/app.md shows.") from None
    if not isinstance(raw, dict):
        raise ValueError(f"the request's body is a JSON {_kind(raw)}; send one JSON object, as docs/app.md shows.")
    return raw


def _whole(digits: str) -> float:
    """An int, or infinity for one that no setting can be: Python refuses to read thousands of digits."""
    return int(digits) if len(digits) < 400 else math.inf


def _kind(value: Any) -> str:
    kinds = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """The values of a call in order by name."""
    if unknown := sorted(set(raw) - {"data"}):
        raise ValueError(f"the request's body has the key {unknown[0]!r}; send only `data`, the list of arguments.")
    values = raw.get("data")
    if not isinstance(values, list) or len(values) != len(ARGUMENTS):
        found = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise ValueError(
            f"`data` holds {found}, it must hold {len(ARGUMENTS)}: {', '.join(ARGUMENTS)}; or send them by name to "
            f"{_BY_NAME}."
        )
    return dict(zip(ARGUMENTS, values, strict=True))


def _check_event(raw: dict[str, Any], events: Mapping[int, int]) -> None:
    number, values = raw.get("fn_index"), raw.get("data")
    if type(number) is not int or number not in events:
        raise ValueError(
            f"`fn_index` is {str(number)[:40]!r}, which is not an event of this page; reload the page, or use the API "
            "that docs/app.md describes."
        )
    if not isinstance(values, list) or len(values) != events[number]:
        found = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise ValueError(f"`data` holds {found}, event {number} takes {events[number]}; reload the page.")
    if raw.get("batched"):
        raise ValueError("`batched` is set, but no event here takes a batch; leave it out.")


async def refused(_: Request, error: RequestValidationError) -> JSONResponse:
    """FastAPI's answer to a body or a query that lacks something, as one sentence."""
    from starlette.responses import JSONResponse

    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"]) or "the request"
    return JSONResponse({"detail": f"{where}: {fault['msg'][:1].lower()}{fault['msg'][1:]}."}, 400)
