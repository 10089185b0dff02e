"""A comparison as one picture: panels side by side with a mark for every sentence of the prompt; or a card to share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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


CARD, CARD_MARGIN, CARD_GAP, CARD_ROWS = 1200, 40, 16, 16
_MARK_WIDTH, _MOST_MARKS = 116, 540  # of a column of marks, and of all of them
_SIDE = 380  # of a picture, at most


def draw_card(comparisons: Sequence[Comparison], *, result: str) -> Image.Image:
    """One prompt's comparisons, one a seed, as a picture that is readable when a chat shows it small; RGB, 1200 wide.

    `result` stands at the top. All comparisons have the same encoders. At most CARD_ROWS sentences are listed.
    """
    first = comparisons[0]
    names = [panel.title for panel in first.panels]
    note_missing(result, *names, *(sentence.text for sentence in first.sentences[:CARD_ROWS]))
    canvas = Image.new("RGB", (CARD, 8000), PAPER)
    pen = ImageDraw.Draw(canvas)
    seeds = [comparison.seed for comparison in comparisons]
    told = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    y = CARD_MARGIN
    Lettering(24).draw(
        pen, (CARD_MARGIN, y), f"debias_sd · one prompt, {count_of(len(names), 'encoder')}, {told}", SOFT
    )
    y = _draw_text(pen, CARD_MARGIN, y + 42, result, size=42, width=CARD - 2 * CARD_MARGIN, most=4) + 20
    y = _draw_pictures(canvas, pen, comparisons, y) + 24
    y = _draw_marks(pen, comparisons, y)
    return canvas.crop((0, 0, CARD, y + CARD_MARGIN))


def _fitting(texts: Sequence[str], width: float) -> int:
    """The largest size in which each of `texts` is one line; the smallest one where none is."""
    sizes = (26, 22, 18, 16, 14, 12)
    return next((size for size in sizes if all(Lettering(size).length(text) <= width for text in texts)), sizes[-1])


def _draw_text(pen: ImageDraw.ImageDraw, x: float, y: float, text: str, *, size: int, width: float, most: int) -> int:
    """Draw `text` in lines; returns where it ends."""
    font = Lettering(size)
    lines = font.wrap(text, width, most=most)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} …"]
    for line in lines:
        font.draw(pen, (x, y), line, INK)
        y += round(size * 1.3)
    return int(y)


def _draw_pictures(canvas: Image.Image, pen: ImageDraw.ImageDraw, comparisons: Sequence[Comparison], y: int) -> int:
    """A column an encoder: its name, its picture of each seed, how many sentences are drawn."""
    count, inner = len(comparisons[0].panels), CARD - 2 * CARD_MARGIN
    width = min(_SIDE, (inner - (count - 1) * CARD_GAP) // count)
    across = 1 if len(comparisons) == 1 else 2
    side = (width - (across - 1) * 8) // across
    lower, size = y, _fitting([panel.title for panel in comparisons[0].panels], width)
    for column in range(count):
        x = CARD_MARGIN + column * (width + CARD_GAP)
        place = _draw_text(pen, x, y, comparisons[0].panels[column].title, size=size, width=width, most=1) + 4
        for number, comparison in enumerate(comparisons):
            panel = comparison.panels[column]
            how = Image.Resampling.NEAREST if panel.image.shape[0] <= 64 else Image.Resampling.LANCZOS
            left, top = x + number % across * (side + 8), place + number // across * (side + 8)
            canvas.paste(Image.fromarray(panel.image).resize((side, side), how), (left, top))
            pen.rectangle((left, top, left + side - 1, top + side - 1), outline=RULE)
        bottom = place + -(-len(comparisons) // across) * (side + 8)
        totals = [comparison.total_in_words(comparison.panels[column]) for comparison in comparisons]
        words = ", ".join(totals) if len(totals) <= 2 else ", ".join(words.partition(" of ")[0] for words in totals)
        lower = max(lower, _draw_text(pen, x, bottom, words, size=26, width=width, most=2))
    return lower


def _draw_marks(pen: ImageDraw.ImageDraw, comparisons: Sequence[Comparison], y: int) -> int:
    """A row a sentence: its text, and a mark per encoder; returns where the last one ends."""
    first, count = comparisons[0], len(comparisons[0].panels)
    cell = min(_MARK_WIDTH, _MOST_MARKS // count)
    text = CARD - 2 * CARD_MARGIN - count * cell - 20
    edges = [CARD - CARD_MARGIN - (count - column) * cell for column in range(count)]
    size = min(18, _fitting([word for panel in first.panels for word in panel.title.split()], cell - 8))
    ends = [
        _draw_text(pen, x, y, panel.title, size=size, width=cell - 8, most=3)
        for x, panel in zip(edges, first.panels, strict=True)
    ]
    y = max(ends) + 6
    shortest = min((panel.window for panel in first.panels if panel.window is not None), default=None)
    for index, sentence in enumerate(first.sentences[:CARD_ROWS]):
        ended = shortest is not None and sentence.first >= shortest - 1
        is_cut = ended and (index == 0 or first.sentences[index - 1].first < shortest - 1)
        pen.line([(CARD_MARGIN, y), (CARD - CARD_MARGIN, y)], fill=RED if is_cut else RULE, width=4 if is_cut else 2)
        if is_cut:
            Lettering(18).draw(pen, (CARD_MARGIN, y + 4), f"{shortest} tokens end here", RED)
            y += 26
        end = _draw_text(pen, CARD_MARGIN, y + 8, sentence.text, size=28, width=text, most=3)
        for column, x in enumerate(edges):
            marks = [comparison.panels[column].verdicts[index].mark for comparison in comparisons]
            _draw_large_mark(pen, x, y + 12, marks)
        y = end + 8
    hidden = len(first.sentences) - CARD_ROWS
    if hidden > 0:
        y = _draw_text(pen, CARD_MARGIN, y + 8, f"and {count_of(hidden, 'more sentence')}", size=28, width=text, most=1)
    return y


def _draw_large_mark(pen: ImageDraw.ImageDraw, x: int, y: int, marks: Sequence[str]) -> None:
    """The mark of one picture as a sign, or in how many of several the sentence is drawn."""
    drawn = list(marks).count("drawn")
    if len(marks) > 1 and set(marks) <= {"drawn", "missing", "not read"} | {mark for mark in marks if " of " in mark}:
        colour = GREEN if drawn == len(marks) else AMBER if drawn else RED
        Lettering(28).draw(pen, (x, y - 4), f"{drawn}/{len(marks)}", colour)
        return
    mark = marks[0] if len(set(marks)) == 1 else "unsure"
    colour = _COLOURS.get(mark, AMBER)
    if mark == "drawn":
        pen.line([(x + 2, y + 14), (x + 12, y + 24), (x + 30, y + 2)], fill=colour, width=6, joint="curve")
    elif mark == "missing":
        pen.line([(x + 4, y + 2), (x + 26, y + 24)], fill=colour, width=6)
        pen.line([(x + 26, y + 2), (x + 4, y + 24)], fill=colour, width=6)
    elif mark in ("not read", "not judged"):
        pen.line([(x + 2, y + 14), (x + 26, y + 14)], fill=colour, width=6)
    else:
        Lettering(24).draw(pen, (x, y - 2), mark, colour)
