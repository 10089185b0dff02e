"""What is kept of a run, its panels, what an encoder looks at: prompts are text, the operator's paths are names."""

import base64
import io
import json
import re
from html import unescape

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_app import drawn, tiny_models

from app.keep import KEPT, Session, comparison_of, gallery_html, page_of, png_of, share_html
from app.live_run import Run, start_run
from app.models import Models, names_only
from app.reading import read_all, reading_html, slots_of
from app.request import Settings, check_request, read_query
from app.result import result_of
from app.routes import answer_of
from app.stage import blind_panel_html, blind_progress_html, panel_html
from app.table import run_table
from debias_sd.comparison import sentences_of
from debias_sd.datasets.world import prompt_set

PROMPT = prompt_set(7, count=1).captions[0].text
NASTY = 'A <img src=x onerror=alert(1)> "star". </script><script>alert(2)</script> ${value}. مرحبا.'
SETTINGS = Settings(encoders={"base": "base", "debias": "debias"})
FOLDER = "/home/somebody/my models"
ELSEWHERE = Settings(
    base=f"{FOLDER}/sd", encoders={"base": f"{FOLDER}/mine", "debias": "/srv/other"}, judge=f"clip:{FOLDER}/judge"
)

# Pictures are drawn in a thread of its own, where several threads of torch share sums out otherwise.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models(sources=ELSEWHERE.sources)


def run_of(models: Models, prompt: str = PROMPT, seeds: int = 1) -> Run:
    return drawn(models, prompt, seed=5, seeds=seeds)


def test_the_png_holds_the_settings_and_the_marks(models):
    run = run_of(models)
    with Image.open(io.BytesIO(png_of(run))) as image:
        content = json.loads(image.text["debias_sd"])
        assert image.text["Description"] == PROMPT
    assert check_request(content["settings"], SETTINGS) == run.request
    assert content["result"] == comparison_of(run).as_json()
    assert content["versions"]["debias-sd"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_png_is_a_card_that_a_chat_can_show_small(models, seeds):
    """Every picture is in it, large; texts are 26 pixels of 1200 and more, except for names over narrow columns."""
    run = run_of(models, seeds=seeds)
    image = np.asarray(Image.open(io.BytesIO(png_of(run))))
    assert image.shape[1:] == (1200, 3)
    side = 380 if seeds == 1 else 186
    for track in run.tracks:
        for picture in track.pictures:
            large = np.asarray(Image.fromarray(picture.image).resize((side, side), Image.Resampling.NEAREST))[
                1:-1, 1:-1
            ]
            corner = np.all(image[: -side + 2, : -side + 2] == large[0, 0], axis=-1)
            found = [np.array_equal(image[y : y + side - 2, x : x + side - 2], large) for y, x in np.argwhere(corner)]
            assert any(found), (track.name, picture.seed)


def test_the_png_of_several_seeds_holds_prompt_seeds_and_marks(models):
    run = run_of(models, seeds=3)
    with Image.open(io.BytesIO(png_of(run))) as image:
        content = json.loads(image.text["debias_sd"])
        assert image.text["Description"] == PROMPT
    assert [result["seed"] for result in content["results"]] == [5, 6, 7]
    assert content["results"] == [comparison_of(run, number).as_json() for number in range(3)]
    assert content["settings"]["seeds"] == 3


@pytest.mark.parametrize("prompt", [PROMPT, NASTY])
def test_the_page_needs_nothing_else_and_shows_prompts_as_text(models, prompt):
    page = page_of(run_of(models, prompt), models, SETTINGS)
    assert re.findall(r"""(?:src|href|url\()\s*=?\s*["']?(?!data:)[a-z]+:""", page) == []
    assert page.count("<script") == 2
    assert "<img src=x" not in page
    assert page.count("data:image/png;base64,") == 2


@pytest.mark.parametrize("prompt", [PROMPT, NASTY])
def test_downloads_are_data_addresses_named_by_the_seed(models, prompt):
    run = run_of(models, prompt)
    page = share_html(run, models, SETTINGS)
    names = re.findall(r'download="([^"]*)"', page)
    assert names == ["comparison-seed-5.png", "comparison-seed-5.html"]
    contents = [base64.b64decode(text) for text in re.findall(r';base64,([^"]*)"', page)]
    assert contents[0][:8] == b"\x89PNG\r\n\x1a\n"
    assert contents[1].decode() == page_of(run, models, SETTINGS)
    query = unescape(re.search(r'data-query="([^"]*)"', page)[1])
    assert check_request(read_query(query), SETTINGS) == run.request
    assert "<script" not in gallery_html([run], 0)
    assert "<img src=x" not in gallery_html([run], 0)


def test_the_gallery_holds_the_newest(models):
    session, run = Session(), run_of(models)
    session.keep(start_run(run.request, models))
    assert session.kept == []
    for _ in range(KEPT + 3):
        session.keep(run)
    assert len(session.kept) == KEPT
    assert gallery_html(session.kept, 0).count('aria-pressed="true"') == 1


def test_the_gallery_has_a_bound_in_bytes(models, monkeypatch):
    run = run_of(models)
    monkeypatch.setattr("app.keep.KEPT_BYTES", 5 * 48 * 48 * 3)  # two pictures a run
    session = Session()
    for _ in range(4):
        session.keep(run)
    assert len(session.kept) == 2


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_panel_has_a_verdict_for_every_sentence(models, seeds):
    run = run_of(models, seeds=seeds)
    page = panel_html(run, run.tracks[1])
    rows = sentences_of(PROMPT, models.base.tokenizer)
    table = run_table(run, models)
    assert table.count('<tr class="sentence') == len(rows)
    assert table.count('<span class="mark">') == 2 * len(rows)
    assert page.count("<figure>") == seeds
    assert "DeBias-CLIP" in page
    assert result_of(run).endswith("</span> of 9 sentences." if seeds == 1 else "in the mean over 2 seeds.")


def test_a_panel_shows_prompts_as_text_and_a_fault(models):
    run = run_of(models, NASTY)
    run.tracks[0].fault = "<b>broken</b>"
    page = panel_html(run, run.tracks[0])
    assert "<img src=x" not in page
    assert "<script" not in page
    assert "&lt;b&gt;broken" in page


def test_a_blind_panel_names_nobody(models):
    run = run_of(models)
    pages = [blind_panel_html(run.tracks[1].pictures[0], 0), blind_panel_html(None, 1)]
    pages += [blind_progress_html(track, place) for place, track in enumerate(run.tracks)]
    for page in pages:
        assert not re.search(r"CLIP|248|77|seed|base\b(?!64)|\d s\b", re.sub(r'src="[^"]*"', "", page))


@pytest.mark.parametrize("prompt", [PROMPT, "One.  Two\n\nthree. Four!", NASTY, "🙂 naïve. 星がある。 Done."])
def test_sentences_have_the_slots_of_their_tokens(models, prompt):
    ruler = models.rulers["debias"]
    spans = ruler.sentence_spans(prompt)
    tokens = len(ruler.tokenizer(prompt, split_special_tokens=True)["input_ids"]) - 2
    assert spans[0][0] == 1
    assert [first for first, _ in spans[1:]] == [last + 1 for _, last in spans[:-1]]
    assert spans[-1][1] == tokens
    if prompt == PROMPT:
        assert spans == [(row.first, row.last) for row in sentences_of(prompt, ruler.tokenizer)]


def test_attention_is_a_distribution_and_commas_change_only_what_is_read(models):
    short, long = read_all(models, ["base", "debias"], PROMPT)
    for reading in (short, long):
        assert reading.attention.sum() == pytest.approx(1, abs=1e-4)
        assert len(reading.sensitivity) == len(reading.sentences)
        assert all(0 < value <= 2 for value in reading.sensitivity)
    assert len(short.attention) == 77
    assert len(short.sentences) < len(long.sentences)
    slots = slots_of(models.rulers["base"], PROMPT)
    assert slots.sentences[-1][1] == 75
    page = reading_html([short, long], PROMPT)
    assert page.count("data:image/png;base64,") == 4
    assert page.count("<td>not read</td>") == len(long.sentences) - len(short.sentences)


def test_the_plots_mark_the_ends_of_the_longest_readers_sentences(models, monkeypatch):
    from matplotlib.axes import Axes

    ends: list[float] = []
    monkeypatch.setattr(Axes, "axvline", lambda axes, x, **style: ends.append(x))
    readings = read_all(models, ["base", "debias"], PROMPT)
    reading_html(readings, PROMPT)
    assert ends == [last + 0.5 for _, last in readings[1].sentences] * 4  # two plots, each light and dark


def test_the_reading_is_the_models_own(models):
    """The copy that keeps attention weights gives the vectors of the model that draws, which stays as it is."""
    model = models.pipes["base"].text_encoder
    before = model.config._attn_implementation
    slots = slots_of(models.rulers["base"], PROMPT)
    with torch.inference_mode():
        pooled = model(input_ids=slots.ids).pooler_output[0]
        changed = slots.ids.clone()
        first, last = slots.sentences[1]
        changed[0, first : last + 1] = slots.neutral
        other = model(input_ids=changed).pooler_output[0]
    expected = 1 - torch.nn.functional.cosine_similarity(pooled, other, dim=0)
    (reading,) = read_all(models, ["base"], PROMPT)
    assert reading.sensitivity[1] == pytest.approx(float(expected), abs=1e-5)
    assert model.config._attn_implementation == before


def test_what_is_taken_along_holds_names(models):
    """Case 141: the page, the JSON, the PNG's text and the link, from a page that only the operator sees."""
    run = drawn(models, "A star.")
    with Image.open(io.BytesIO(png_of(run))) as image:
        texts = list(image.text.values())
    files = re.findall(r";base64,([^\"]*)\"", share_html(run, models, ELSEWHERE))
    texts += [base64.b64decode(files[1]).decode(), run_table(run, models), result_of(run)]
    texts += [page_of(run, models, ELSEWHERE), json.dumps(answer_of(run)), run.request.as_query()]
    for text in texts:
        assert "somebody" not in text
        assert "/srv" not in text
    assert "--encoders base debias" in texts[-3]
    assert FOLDER in run.request.as_command(ELSEWHERE), "the operator's own command line can be run"


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

    assert names_only(fault, ELSEWHERE.sources) == told
    monkeypatch.setattr(models.pipes["base"].text_encoder, "forward", fail)
    run = drawn(models, "A star.")
    assert run.tracks[0].fault == told
    for text in (panel_html(run, run.tracks[0]), json.dumps(answer_of(run)), page_of(run, models, ELSEWHERE)):
        assert "somebody" not in text
        assert "/srv" not in text
