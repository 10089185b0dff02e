"""Text in pictures: a font that has the characters, or the place kept and a note."""

import io
import logging

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from debias_sd import lettering
from debias_sd.comparison import Comparison, Panel, Sentence
from debias_sd.lettering import Lettering, note_missing
from debias_sd.measure.judges import unjudged
from debias_sd.panels import draw_panels

SIZE = 17


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """A machine without fonts of the system, and without those that matplotlib brings along."""
    monkeypatch.setattr(lettering, "_folders", lambda: [tmp_path / "fonts"])
    monkeypatch.setattr(lettering, "_matplotlib_font", list)
    monkeypatch.setattr(lettering, "_told", set())
    forget()
    yield tmp_path / "fonts"
    monkeypatch.undo()
    forget()


def forget() -> None:
    for known in (lettering._fonts, lettering._font_of, lettering._has, lettering._loaded):
        known.cache_clear()


def picture_of(text: str) -> np.ndarray:
    image = Image.new("L", (400, 40), 255)
    Lettering(SIZE).draw(ImageDraw.Draw(image), (5, 5), text, "black")
    return np.asarray(image)


def save_font(path, chars: str) -> None:
    """A font whose every character is a filled block that stands for it alone by its width."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pens = pytest.importorskip("fontTools.pens.ttGlyphPen")
    names = [".notdef", *(f"u{ord(char):X}" for char in chars)]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(char): name for char, name in zip(chars, names[1:], strict=True)})
    glyphs = {}
    for number, name in enumerate(names):
        pen = pens.TTGlyphPen(None)
        for step, corner in enumerate([(50, 0), (50, 700), (950, 700), (950, 350 if number else 0), (500, 0)]):
            (pen.moveTo if step == 0 else pen.lineTo)(corner)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 50)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def test_plain_text_is_drawn_as_before_and_lines_fit_by_what_they_measure():
    image = Image.new("L", (400, 40), 255)
    font = ImageFont.load_default(SIZE)
    ImageDraw.Draw(image).text((5, 5), "A small red star.", fill="black", font=font)
    assert np.abs(np.asarray(image).astype(int) - picture_of("A small red star.")).mean() < 1
    assert Lettering(SIZE).length("A small red star.") == pytest.approx(font.getlength("A small red star."), abs=0.1)
    words = Lettering(SIZE)
    for text in ("中" * 100, "W" * 100, "i" * 300, "A star. " * 40):
        lines = words.wrap(text, 200, most=50)
        assert all(0 < words.length(line) <= 200 for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert len(words.wrap("word " * 10_000, 200, most=4)) == 5
    assert words.wrap("", 200, most=4) == [""]


@pytest.mark.parametrize("char", ["é", "🙂", "中", "ع", "\x00"])
def test_a_character_without_a_font_keeps_its_place_and_is_noted_once(char, caplog):
    """Case 139: the box is as wide as it counts, and the text behind it follows."""
    caplog.set_level(logging.WARNING, logger="debias_sd")
    words = Lettering(SIZE)
    assert words.length(f"a {char} b") == pytest.approx(words.length("a ") + 0.8 * SIZE + words.length(" b"), abs=0.1)
    drawn = picture_of(char) < 128
    assert drawn[:, 5 : 5 + SIZE].sum() > 2 * SIZE  # the box's sides
    assert not drawn[13:18, 9:14].any(), "a box is empty"
    for _ in range(2):
        note_missing(f"{char} again {char}", "plain")
    (note,) = [record.getMessage() for record in caplog.records]
    assert note.startswith("no font on this machine has ")
    assert f"U+{ord(char):04X}" in note


def test_a_font_of_the_system_is_found_for_what_the_prompt_holds(bare, caplog):
    """Case 139: by character, in folders of fonts; a broken file among them is passed over."""
    (bare / "deep").mkdir(parents=True)
    save_font(bare / "deep" / "Some.ttf", "中🙂")
    (bare / "Broken.ttf").write_bytes(b"no font")
    forget()
    words = Lettering(SIZE)
    assert words.length("中中") == pytest.approx(2 * SIZE, abs=0.5)
    drawn = picture_of("中") < 128
    assert drawn[13:18, 9:14].all(), "the block of the font, not an empty box"
    assert not np.array_equal(picture_of("A 中 and 🙂."), picture_of("A  and ."))
    assert words.length("A 中.") == pytest.approx(words.length("A ") + SIZE + words.length("."), abs=0.5)
    note_missing("A 中.")
    assert caplog.records == []


def test_letters_with_accents_are_letters_where_matplotlib_is(monkeypatch, caplog):
    """Case 139: its DejaVu Sans has Latin, Greek, Cyrillic and Arabic."""
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    monkeypatch.setattr(lettering, "_folders", list)
    forget()
    for text in ("naïve café", "Ωμέγα", "Привет", "مرحبا بالعالم"):
        (run,) = lettering._runs(text)
        assert run == (lettering._matplotlib_font()[0], text)
        assert (picture_of(text) < 128).sum() > 50
        note_missing(text)
    assert caplog.records == []


def test_a_comparison_in_other_scripts_is_a_picture(caplog):
    """Case 139: what `debias-sd compare` and the app write."""
    prompt = "A café. 中文字 🙂. العربية."
    sentences = tuple(Sentence(text, 1, 2, ()) for text in prompt.split(". "))
    panel = Panel("base", 77, np.zeros((48, 48, 3), np.uint8), tuple(unjudged(s.text, "") for s in sentences))
    content = io.BytesIO()
    draw_panels(Comparison(prompt, 0, sentences, (panel,))).save(content, format="PNG")
    assert Image.open(content).size[0] > 500
    (note,) = [record.getMessage() for record in caplog.records]
    assert "中 (U+4E2D)" in note or note.endswith("more characters; a box keeps the place in the picture.")
