"""A comparison as one picture: panels side by side, and under each a mark for every sentence of the prompt."""

from __future__ import annotations

import dataclasses

from PIL import Image, ImageDraw

from debias_sd.comparison import Comparison, Panel
from debias_sd.lettering import Lettering, note_missing
from debias_sd.text import count_of

ZOOM = 6
MARGIN, TEXT_WIDTH, GAP, LINE = 28, 470, 22, 21
MAX_ROWS, MAX_LINES = 24, 4
INK, SOFT, RULE, PAPER, STRIPE = "#1f2328", "#656d76", "#d0d7de", "#ffffff", "#f6f8fa"
GREEN, RED, AMBER = "#1a7f37", "#cf222e", "#9a6700"
_COLOURS = {"drawn": GREEN, "missing": RED, "not read": SOFT, "not judged": SOFT}


@dataclasses.dataclass(frozen=True)
class _Row:
    lines: list[str]
    marks: list[str]
    first: int

    @property
    def height(self) -> int:
        return LINE * max(1, len(self.lines)) + 14


def _wrap(text: str, font: Lettering, width: int) -> list[str]:
    """Lines of at most `width` pixels; at most MAX_LINES, then an ellipsis."""
    lines = font.wrap(text, width, most=MAX_LINES)
    if len(lines) > MAX_LINES:
        end = lines[MAX_LINES - 1]
        while end and font.length(f"{end} …") > width:
            end = end.rpartition(" ")[0] or end[:-1]
        lines[MAX_LINES - 1 :] = [f"{end} …"]
    return lines


def _rows(comparison: Comparison, font: Lettering) -> list[_Row]:
    rows = []
    for index, sentence in enumerate(comparison.sentences[:MAX_ROWS]):
        marks = [panel.verdicts[index].mark for panel in comparison.panels]
        rows.append(_Row(_wrap(sentence.text, font, TEXT_WIDTH - 40), marks, sentence.first))
    return rows


def _draw_mark(pen: ImageDraw.ImageDraw, x: int, y: int, mark: str, font: Lettering) -> None:
    """A tick, a cross or a dash, and the mark in words."""
    colour = _COLOURS.get(mark, AMBER)
    if mark == "drawn":
        pen.line([(x, y + 8), (x + 5, y + 13), (x + 14, y + 2)], fill=colour, width=3, joint="curve")
    elif mark == "missing":
        pen.line([(x + 1, y + 2), (x + 12, y + 13)], fill=colour, width=3)
        pen.line([(x + 12, y + 2), (x + 1, y + 13)], fill=colour, width=3)
    else:
        pen.line([(x, y + 8), (x + 13, y + 8)], fill=colour, width=3)
    font.draw(pen, (x + 22, y - 3), mark, colour)


def _draw_head(canvas: Image.Image, pen: ImageDraw.ImageDraw, comparison: Comparison, panel: Panel, x: int) -> None:
    """Title, score and picture of one panel, its left edge at `x`."""
    score = f"{comparison.total_in_words(panel)} drawn" if comparison.total(panel)[1] else "not judged"
    reads = "reads every sentence" if panel.window is None else f"reads {panel.window} tokens"
    Lettering(24).draw(pen, (x, MARGIN - 6), panel.title, INK)
    Lettering(16).draw(pen, (x, MARGIN + 24), f"{reads} · {score}", SOFT)
    side = panel.image.shape[0] * ZOOM if panel.image.shape[0] <= 64 else 288
    how = Image.Resampling.NEAREST if panel.image.shape[0] <= 64 else Image.Resampling.LANCZOS
    picture = Image.fromarray(panel.image).resize((side, side), how)
    canvas.paste(picture, (x, MARGIN + 54))
    pen.rectangle((x - 1, MARGIN + 53, x + side, MARGIN + 54 + side), outline=RULE)


def _draw_intro(pen: ImageDraw.ImageDraw, comparison: Comparison, y: int) -> None:
    count, end = len(comparison.sentences), max([0, *(s.last for s in comparison.sentences)])
    Lettering(24).draw(pen, (MARGIN, MARGIN - 6), "One prompt, one seed", INK)
    lines = [
        f"{count_of(count, 'sentence')}, {count_of(end, 'token')}, seed {comparison.seed}.",
        "Which sentences made it into each picture,",
    ]
    lines.append("as read back from the pixels?")
    for number, text in enumerate(lines):
        Lettering(17).draw(pen, (MARGIN, MARGIN + 28 + 22 * number), text, SOFT)
    Lettering(16).draw(pen, (MARGIN, y - 28), "The prompt, sentence by sentence", SOFT)


def draw_panels(comparison: Comparison) -> Image.Image:
    """The whole picture, RGB; at most MAX_ROWS sentences are listed, the rest is counted in the last line."""
    side = 288
    font = Lettering(17)
    rows = _rows(comparison, font)
    note_missing(*(line for row in rows for line in row.lines), *(panel.title for panel in comparison.panels))
    top = MARGIN + 54 + side + 20
    hidden = len(comparison.sentences) - len(rows)
    width = 2 * MARGIN + TEXT_WIDTH + len(comparison.panels) * (side + GAP)
    height = top + sum(row.height for row in rows) + MARGIN + (LINE if hidden else 0)
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    edges = [MARGIN + TEXT_WIDTH + GAP + number * (side + GAP) for number in range(len(comparison.panels))]
    _draw_intro(pen, comparison, top)
    for panel, x in zip(comparison.panels, edges, strict=True):
        _draw_head(canvas, pen, comparison, panel, x)
    y = top
    shortest = min((panel.window for panel in comparison.panels if panel.window is not None), default=None)
    ended = False
    for number, row in enumerate(rows):
        if number % 2 == 0:
            pen.rectangle((MARGIN - 10, y, width - MARGIN + 10, y + row.height - 1), fill=STRIPE)
        font.draw(pen, (MARGIN, y + 7), f"{number + 1}", SOFT)
        for index, line in enumerate(row.lines):
            font.draw(pen, (MARGIN + 30, y + 7 + LINE * index), line, INK)
        for x, mark in zip(edges, row.marks, strict=True):
            _draw_mark(pen, x, y + 10, mark, Lettering(17))
        if not ended and shortest is not None and row.first >= shortest - 1:
            _draw_limit(pen, y, width, shortest)
            ended = True
        y += row.height
    if hidden:
        font.draw(pen, (MARGIN + 30, y + 7), f"and {count_of(hidden, 'sentence')} more", SOFT)
    return canvas


def _draw_limit(pen: ImageDraw.ImageDraw, y: int, width: int, window: int) -> None:
    """A dashed line above the first sentence that the shortest encoder does not read at all."""
    for x in range(MARGIN - 10, width - MARGIN + 10, 12):
        pen.line([(x, y), (x + 6, y)], fill=RED, width=2)
    label, font = f"{window} tokens end above", Lettering(13)
    right = width - MARGIN + 10
    left = right - font.length(label) - 16
    pen.rectangle((left, y - 10, right, y + 9), fill=PAPER, outline=RED)
    font.draw(pen, (left + 8, y - 9), label, RED)
