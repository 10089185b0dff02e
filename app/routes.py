"""What is posted to gradio's routes, checked before gradio reads it, and the one that the API offers: /compare.

A fault is 400 and one sentence. Gradio answers most of these with 500 and shows the operator a traceback, as if the app
were broken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.gate import App, Receive, Send
from app.live_run import Run, Track, compare, start_run
from app.look import data_url
from app.models import Models
from app.request import Settings, check_request

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from starlette.responses import JSONResponse

ARGUMENTS = ("prompt", "seed", "seeds", "steps", "guidance", "negative", "encoders", "side")
_BY_NAME = "/gradio_api/call/v2/compare"
_IN_ORDER = "/gradio_api/call/compare"
_EVENTS = re.compile(r"/gradio_api/(queue/join|(run|api)/[\w-]+)")

Check = Callable[[str, bytes], None]


class Posted:
    """ASGI middleware: hands on what `check` takes, answers 400 with the sentence of its ValueError otherwise."""

    def __init__(self, app: App, check: Check) -> None:
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
    kinds = {list: "list", dict: "object", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _found(values: Any) -> str:
    return str(len(values)) if isinstance(values, list) else f"a JSON {_kind(values)}"


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """The values of a call in order by name."""
    if unknown := sorted(set(raw) - {"data"}):
        raise ValueError(f"the request's body has the key {unknown[0]!r}; send only `data`, the list of arguments.")
    values = raw.get("data")
    if not isinstance(values, list) or len(values) != len(ARGUMENTS):
        raise ValueError(
            f"`data` must be a list of {len(ARGUMENTS)} values ({', '.join(ARGUMENTS)}), found {_found(values)}; or "
            f"send them by name to {_BY_NAME}."
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
        raise ValueError(
            f"`data` must be a list of {events[number]} values for event {number}, found {_found(values)}; reload "
            "the page."
        )
    if raw.get("batched"):
        raise ValueError("`batched` is set, but no event here takes a batch; leave it out.")


async def refused(_: Request, error: RequestValidationError) -> JSONResponse:
    """FastAPI's answer to a body or a query that lacks something, as one sentence."""
    from starlette.responses import JSONResponse

    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"]) or "the request"
    return JSONResponse({"detail": f"{where}: {fault['msg'][:1].lower()}{fault['msg'][1:]}."}, 400)


def answer_of(run: Run) -> dict[str, Any]:
    """A run as plain data; `state` is waiting, drawing or done."""
    state = "waiting" if run.before is not None else "done" if run.is_over else "drawing"
    return {
        "state": state,
        "before": run.before or 0,
        "settings": run.request.as_dict(),
        "judge": run.judge,
        "sentences": [
            {"text": s.text, "tokens": [s.first, s.last], "names": [thing.name for thing in s.things]}
            for s in run.sentences
        ],
        "encoders": {track.name: _encoder(track, with_pictures=run.is_over) for track in run.tracks},
    }


def _encoder(track: Track, *, with_pictures: bool) -> dict[str, Any]:
    pictures = [
        {
            "seed": picture.seed,
            "seconds": round(picture.seconds, 3),
            "verdicts": [
                {"mark": v.mark, "score": v.score, "found": v.found, "reason": v.reason} for v in picture.verdicts
            ],
            "late_detail": picture.score.late,
            "by_quarter": list(picture.score.quarters),
            "png": data_url(picture.image) if with_pictures else None,
        }
        for picture in track.pictures
    ]
    about = {"window": track.window, "state": track.state, "step": track.step, "fault": track.fault}
    return about | {"pictures": pictures}


def compare_endpoint(models: Models, settings: Settings) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The function behind /compare."""

    async def compare_prompt(
        prompt: str,
        seed: int = 0,
        seeds: int = 1,
        steps: int | None = None,
        guidance: float | None = None,
        negative: str = "",
        encoders: list[str] | None = None,
        side: int | None = None,
        request: gr.Request | None = None,
    ) -> dict:  # gradio reads this as the type of one answer
        """Draw one prompt with several encoders; the last answer holds the pictures as PNG data addresses."""
        values = (prompt, seed, seeds, steps, guidance, negative, encoders, side)
        try:
            raw = given(dict(zip(ARGUMENTS, values, strict=True)))
            run = start_run(check_request(raw, settings), models, request)
            async for state in compare(run, models):
                yield answer_of(state)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return compare_prompt


class Page(gr.Blocks):
    """Blocks whose events answer a value that they cannot take with one sentence, and without a traceback."""

    events: Any = None  # what happens on the page: app.events.Events

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any) -> list[Any]:
        try:
            return await super().preprocess_data(block_fn, inputs, *arguments, **options)
        except gr.Error as error:  # gradio's own words, as for a number out of its range
            raise gr.Error(str(error.message), print_exception=False) from None
        except Exception as error:  # whatever a component makes of a value that it cannot take
            raise gr.Error(
                f"The request has a value of the wrong kind ({type(error).__name__}); plain text, numbers and lists of "
                "names are needed.",
                print_exception=False,
            ) from None
