"""The limit of a request's body, message by message."""

import asyncio

import pytest

from app.body import BodyLimit


async def echo(scope, receive, send):
    """An application that reads the whole body, then answers with its length."""
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


def answer_to(parts: list[bytes], headers: list[tuple[bytes, bytes]], *, limit: int = 10) -> list[dict]:
    """What a client that sends `parts` gets."""
    left, sent = list(parts), []

    async def receive():
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    asyncio.run(BodyLimit(echo, limit)({"type": "http", "headers": headers}, receive, send))
    return sent


@pytest.mark.parametrize(
    ("parts", "headers", "status"),
    [
        ([b""], [], 200),
        ([b"x" * 10], [(b"content-length", b"10")], 200),
        ([b"x" * 5, b"x" * 5], [], 200),
        ([b"x" * 11], [(b"content-length", b"11")], 413),
        ([b"x" * 11], [(b"content-length", b"1")], 413),
        ([b"x" * 11], [(b"content-length", b"-1")], 413),
        ([b"x" * 6, b"x" * 6, b"x" * 6], [], 413),
    ],
)
def test_up_to_the_limit_and_no_further(parts, headers, status):
    start, body = answer_to(parts, headers)
    assert start["status"] == status
    expected = str(sum(map(len, parts))).encode() if status == 200 else b"the request is longer than 2 MB; shorten it."
    assert body["body"] == expected


def test_other_scopes_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))

    asyncio.run(BodyLimit(app)({"type": "lifespan"}, "receive", "send"))
    assert seen == [({"type": "lifespan"}, "receive", "send")]
