"""What the server lets through, whatever the page allowed; settings as JSON, link and command line."""

import asyncio
import math
import shlex

import pytest

from app.gate import BodyLimit
from app.request import LINK_CHARACTERS, PROMPT_CHARACTERS, Request, Settings, check_request, read_query
from debias_sd.cli import build_parser

EMBEDDED = Settings()
REAL = Settings(base="org/sd", encoders={"Mine": "folder/one", "CLIP": "base"})


def test_missing_values_are_the_pipelines_own():
    assert check_request({"prompt": "A star."}, EMBEDDED) == Request("A star.", ("base", "long-clip", "debias"))
    real = check_request({"prompt": "A star."}, REAL)
    assert (real.steps, real.guidance, real.encoders) == (30, 7.5, ("Mine", "CLIP"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": " \n\t"}, "the prompt is empty"),
        (
            {"prompt": "a" * (PROMPT_CHARACTERS + 1)},
            "the prompt has 20,001 characters and may have at most 20,000; shorten it.",
        ),
        ({"prompt": 7}, "the prompt is of type int"),
        ({"prompt": "a \ud800 star"}, "not valid text"),
        ({"negative": "a" * 2001}, "the negative prompt has 2,001 characters"),
        ({"seed": -1}, "the seed is -1; it must be a whole number from 0 to 4294967295."),
        ({"seed": 2**32}, "the seed is 4294967296"),
        ({"seed": 1.5}, "the seed is 1.5"),
        ({"seed": True}, "the seed is True"),
        ({"seed": math.nan}, "the seed is nan"),
        ({"seed": "0"}, "the seed is '0'"),
        ({"seeds": 9}, "the number of seeds is 9; it must be a whole number from 1 to 8."),
        ({"seeds": 0}, "the number of seeds is 0"),
        ({"steps": 101}, "the number of steps is 101; it must be a whole number from 1 to 100."),
        ({"steps": None}, "the number of steps is None"),
        ({"guidance": math.inf}, "the guidance is inf; it must be a number from 0 to 20."),
        ({"guidance": -0.5}, "the guidance is -0.5"),
        ({"side": 512}, "the embedded pipeline draws 48 x 48 pixels only"),
        ({"encoders": []}, "no encoder is chosen"),
        ({"encoders": "base"}, "no encoder is chosen"),
        (
            {"encoders": ["/etc/passwd"]},
            "unknown encoder '/etc/passwd'; choose from base, chunked, ",
        ),
        ({"encoders": ["openai/clip"]}, "unknown encoder 'openai/clip'"),
        ({"encoders": [["base"]]}, "unknown encoder"),
        ({"base": "org/other"}, "unknown setting 'base'; the settings are encoders, guidance"),
    ],
)
def test_each_fault_is_one_sentence(change, sentence):
    with pytest.raises(ValueError, match=".") as caught:
        check_request({"prompt": "A star."} | change, EMBEDDED)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_are_those_of_the_list():
    assert check_request({"prompt": "A star.", "side": 512}, REAL).side == 512
    for side in (513, 100_000, True, "512"):
        with pytest.raises(ValueError, match="the size is"):
            check_request({"prompt": "A star.", "side": side}, REAL)


@pytest.mark.parametrize(
    "prompt", ["A star.", 'He said: "no" & left\n\nthen <b>\u202e.', "🙂 星がある。 مرحبا", "a" * 20_000]
)
def test_the_link_repeats_the_run(prompt):
    request = Request(prompt, ("debias",), negative="blue, 50 %", seed=2**32 - 1, seeds=3, steps=7, guidance=2.5)
    query = request.as_query()
    if len(prompt) > LINK_CHARACTERS:
        assert query is None
    else:
        assert check_request(read_query(query + "&__theme=dark"), EMBEDDED) == request


def test_a_link_of_nonsense_is_refused_like_any_request():
    with pytest.raises(ValueError, match="the number of steps is 'many'"):
        check_request(read_query("prompt=A+star.&steps=many"), EMBEDDED)


@pytest.mark.parametrize("prompt", ["A star.", "--steps 3", 'it\'s $(rm -rf ~) `x`; \\ "q"\nnext'])
def test_the_command_line_is_the_same_comparison(prompt):
    request = Request(prompt, ("base", "debias"), seed=5, seeds=2, steps=9, guidance=3.5)
    words = shlex.split(request.as_command(EMBEDDED))
    begins = [place for place, word in enumerate(words) if word == "debias-sd"]
    assert len(begins) == 2
    for seed, begin, end in zip((5, 6), begins, [*begins[1:], None], strict=True):
        arguments = build_parser().parse_args(words[begin + 1 : end])
        assert (arguments.prompt, arguments.encoders, arguments.base) == (prompt, ["base", "debias"], None)
        assert (arguments.seed, arguments.steps, arguments.guidance_scale) == (seed, 9, 3.5)
        assert str(arguments.out) == f"compare-{seed}.png"


def test_size_device_and_kind_of_numbers_are_in_the_command():
    settings = Settings(base="org/sd", encoders=REAL.encoders, device="cuda", dtype="float16")
    words = shlex.split(Request("A star.", ("Mine",), side=512).as_command(settings))
    arguments = build_parser().parse_args(words[1:])
    assert (arguments.size, arguments.device, arguments.dtype) == (512, "cuda", "float16")
    assert "--size" not in Request("A star.", ("Mine",)).as_command(REAL)


def test_folders_are_named_on_a_private_page_only():
    request = Request("A star.", ("Mine",))
    assert "folder/one" in request.as_command(REAL)
    for open_page in (
        Settings(base="org/sd", encoders=REAL.encoders, host="0.0.0.0"),
        Settings(base="org/sd", encoders=REAL.encoders, share=True),
    ):
        command = request.as_command(open_page)
        assert "folder/one" not in command
        assert "org/sd" not in command


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"encoders": {}}, "names 0 encoders; it must name 1 to 6."),
        ({"encoders": {f"e{i}": "base" for i in range(7)}}, "names 7"),
        ({"encoders": {"<b>": "base"}}, "has the name '<b>'"),
        ({"dtype": "int8"}, "--dtype is int8"),
        ({"port": 70000}, "--port is 70000"),
        ({"framed_by": ("https://a.org/x",)}, "--framed-by has 'https://a.org/x'; give origins like"),
        ({"framed_by": ("*",)}, "--framed-by has"),
    ],
)
def test_an_operators_fault_is_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**options)


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
