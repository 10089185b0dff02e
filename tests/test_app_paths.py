"""What leaves the app says nothing of where the operator's files lie: downloads, API, link, faults; and the page."""

import asyncio
import base64
import io
import json
import re

import pytest
from PIL import Image
from tiny_app import finish, tiny_encoder
from tiny_world import tiny_pipeline

from app.api import answer_of
from app.keep import downloads_html, page_of, png_of
from app.models import Models
from app.paths import names_only
from app.request import Request
from app.run import Run, start_run
from app.settings import Settings
from app.stage import panel_html
from debias_sd.comparison import pipes_of

FOLDER = "/home/somebody/my models"
SETTINGS = Settings(
    base=f"{FOLDER}/sd", encoders={"Mine": f"{FOLDER}/mine", "Other": "/srv/other"}, judge=f"clip:{FOLDER}/judge"
)


@pytest.fixture(scope="module")
def models() -> Models:
    base = tiny_pipeline()
    encoders = {"Mine": tiny_encoder(77, 0), "Other": tiny_encoder(248, 1)}
    return Models(pipes_of(base, encoders), base, sources=SETTINGS.sources)


def drawn(models: Models) -> Run:
    run = start_run(Request("A star.", ("Mine", "Other"), steps=1), models)
    asyncio.run(finish(run, models))
    return run


def test_what_is_taken_along_holds_names(models):
    """Case 141: the page, the JSON, the PNG's text and the link, from a page that only the operator sees."""
    run = drawn(models)
    with Image.open(io.BytesIO(png_of(run))) as image:
        texts = list(image.text.values())
    files = re.findall(r";base64,([^\"]*)\"", downloads_html(run, SETTINGS))
    texts += [base64.b64decode(files[1]).decode(), base64.b64decode(files[2]).decode()]
    texts += [page_of(run, SETTINGS), json.dumps(answer_of(run)), run.request.as_query()]
    for text in texts:
        assert "somebody" not in text
        assert "/srv" not in text
    assert "--encoders Mine Other" in texts[-3]
    assert FOLDER in run.request.as_command(SETTINGS), "the operator's own command line can be run"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (f"encoder {FOLDER}/mine holds NaN; take another.", "encoder mine holds NaN; take another."),
        (f"'{FOLDER}/x y/config.json' is not JSON; repair it.", "'config.json' is not JSON; repair it."),
        ("/srv/other/model.safetensors is cut short.", "model.safetensors is cut short."),
        (r"folder C:\Users\somebody\sd lacks a VAE.", "folder sd lacks a VAE."),
        ("file:///home/somebody/a.json or ~/b/c.json", "a.json or c.json"),
        (
            "the size is 1/2 and/or https://example.org/a is asked",
            "the size is 1/2 and/or https://example.org/a is asked",
        ),
    ],
)
def test_a_fault_holds_names(models, monkeypatch, fault, told):
    """Case 141: what an encoder's panel and the API say."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError(fault)

    assert names_only(fault, SETTINGS.sources) == told
    monkeypatch.setattr(models.pipes["Mine"].text_encoder, "forward", fail)
    run = drawn(models)
    assert run.tracks[0].fault == told
    for text in (panel_html(run, run.tracks[0]), json.dumps(answer_of(run)), page_of(run, SETTINGS)):
        assert "somebody" not in text
        assert "/srv" not in text
