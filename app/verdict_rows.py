"""The sentences under a panel's pictures, each with its verdict: what one picture shows, or how many of several do."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.run import Picture
from app.scores import mean_of
from debias_sd.comparison import Sentence

_SIGNS = {"drawn": "✓", "missing": "✕", "unsure": "?", "not read": "–", "not judged": "·"}
_IN_PART = "◐"


def verdicts_html(sentences: Sequence[Sentence], pictures: Sequence[Picture]) -> str:
    """A row a sentence, which lights up where it was looked for."""
    says_why = any(verdict.is_judged for picture in pictures for verdict in picture.verdicts)  # else the panel does
    rows = "".join(_row(index, sentence, pictures, says_why=says_why) for index, sentence in enumerate(sentences))
    return f'<ol class="verdicts" aria-label="Sentences and verdicts">{rows}</ol>'


def _row(index: int, sentence: Sentence, pictures: Sequence[Picture], *, says_why: bool) -> str:
    verdicts = [picture.verdicts[index] for picture in pictures]
    kind, mark = _mark_of([verdict.mark for verdict in verdicts])
    is_one = len(verdicts) == 1
    score = mean_of([verdict.score for verdict in verdicts])
    told = "" if score is None else f"{'score' if is_one else 'mean score'} {score:.2f}"
    if is_one and (found := verdicts[0].found):
        told += f"; found {found}"
    elif says_why:
        told = told or verdicts[0].reason
    return (
        f'<li class="{_class_of(kind)}" tabindex="0" data-sentence="{index}"><span class="mark">'
        f'<i aria-hidden="true">{_SIGNS.get(kind, _IN_PART)}</i> {escape(mark)}</span>'
        f'<span class="text" dir="auto">{escape(sentence.text)}</span>'
        + (f'<span class="told">{escape(told)}</span>' if told else "")
        + "</li>"
    )


def _mark_of(marks: Sequence[str]) -> tuple[str, str]:
    """The kind of a row and its words: one picture's mark, or that of all, or how many pictures show the sentence.

    >>> _mark_of(["1 of 2"]), _mark_of(["drawn", "drawn"]), _mark_of(["drawn", "missing", "missing"])
    (('some', '1 of 2'), ('drawn', 'in 2 of 2'), ('some', 'in 1 of 3'))
    >>> _mark_of(["not read", "not read"]), _mark_of(["unsure", "missing"])
    (('not read', 'not read'), ('unsure', 'unsure'))
    """
    first, drawn = marks[0], list(marks).count("drawn")
    if len(set(marks)) == 1 and (first in ("unsure", "not read", "not judged") or len(marks) == 1):
        return (first if first in _SIGNS else "some"), first
    if not drawn and "unsure" in marks:
        return "unsure", "unsure"
    told = f"in {drawn} of {len(marks)}"
    if drawn == len(marks):
        return "drawn", told
    is_nowhere = not drawn and set(marks) <= {"missing", "not read"}
    return ("missing" if is_nowhere else "some"), told


def _class_of(kind: str) -> str:
    return kind if kind in ("drawn", "missing", "unsure", "some") else "quiet"
