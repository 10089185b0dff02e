"""The one table of sentences: a row per sentence of the prompt, a column per encoder, lines where a window ends.

It stands for the prompt in the box. While that is another one than the pictures' it has no marks but "not read" and
follows every key, by a route of its own. Its rows are where sentences are moved and dropped. Plain strings of HTML;
every piece of the prompt is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse
from starlette.routing import Route

from app.live_run import Run, Track
from app.models import Models
from app.request import PROMPT_CHARACTERS
from debias_sd.sentences import split_sentences
from debias_sd.text import count_of
from debias_sd.tokens import check_text

_SHOWN = 60  # sentences that the table spells out; the rest is counted
_SIGNS = {"drawn": "✓", "missing": "✕", "unsure": "?", "not read": "–", "not judged": "·"}
_IN_PART = "◐"
_WORDS = 10  # unknown words that are named
Cell = tuple[str, str]  # what tells the columns apart, and the cell's HTML


def live_table(prompt: str, models: Models, names: Sequence[str]) -> str:
    """The table of a prompt that is not drawn yet, for the named encoders; one sentence for what is no prompt."""
    if fault := fault_of(prompt):
        return f'<p class="fault" role="alert">{escape(fault)}</p>'
    return _table(prompt, models, names, {name: [] for name in names})


def run_table(run: Run, models: Models) -> str:
    """The table of a run: what each encoder's pictures show of each sentence, as far as they are drawn."""
    names = [track.name for track in run.tracks]
    return _table(run.request.prompt, models, names, {track.name: _cells(run, track) for track in run.tracks}, run=run)


def fault_of(prompt: str) -> str | None:
    """What is wrong with a prompt, in one sentence."""
    if len(prompt) > PROMPT_CHARACTERS:
        return f"The prompt has {len(prompt):,} characters and may have at most {PROMPT_CHARACTERS:,}; shorten it."
    try:
        check_text(prompt)
    except ValueError as error:
        return str(error)
    return None


def _table(
    prompt: str, models: Models, names: Sequence[str], cells: Mapping[str, Sequence[Cell]], *, run: Run | None = None
) -> str:
    sentences = split_sentences(prompt)
    with models.counting:
        spans = models.rulers[names[0]].sentence_spans(prompt) if names else []
    tokens = spans[-1][1] if spans else 0
    windows = {name: models.rulers[name].reach for name in names}
    cuts = _cuts_of(spans, windows)
    rows = []
    for index, text in enumerate(sentences[:_SHOWN]):
        rows += [_cut_row(window, models, windows, names) for window in cuts.get(index, ())]
        first = spans[index][0] if index < len(spans) else 0
        marks = [
            cells[name][index] if cells[name] else _unread(first, windows[name], is_drawing=run is not None)
            for name in names
        ]
        rows.append(_row(index, text, marks, last=len(sentences) - 1))
    rows += [_cut_row(window, models, windows, names) for window in cuts.get(len(sentences), ())]
    if len(sentences) > _SHOWN:
        rest = count_of(len(sentences) - _SHOWN, "more sentence")
        rows.append(f'<tr class="more" role="row"><td role="cell" colspan="{len(names) + 1}">and {rest}</td></tr>')
    head = "".join(f'<th scope="col" role="columnheader">{escape(models.rulers[name].title)}</th>' for name in names)
    told = _told(prompt, models, windows, count=len(sentences), tokens=tokens)
    drawn = "" if run is None else f' data-prompt="{escape(prompt)}"'
    kind, columns = "sentences many" if len(names) > 3 else "sentences", max(1, len(names))
    return (
        f'<table class="{kind}" role="table" style="--columns:{columns}"{drawn}><caption>{told}</caption>'
        f"<colgroup>{'<col>' * (len(names) + 1)}</colgroup>"
        f'<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Sentence</th>{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _cuts_of(spans: Sequence[tuple[int, int]], windows: Mapping[str, int | None]) -> dict[int, list[int]]:
    """Before which sentence a window has ended, by the sentence's number; a window that reads all has no end.

    >>> _cuts_of([(1, 40), (41, 80), (81, 90)], {"a": 77, "b": 248, "c": None, "d": 82})
    {2: [77, 82]}
    """
    found: dict[int, list[int]] = {}
    for window in sorted({window for window in windows.values() if window is not None}):
        after = next((index for index, (first, last) in enumerate(spans) if last >= window - 1), None)
        if after is not None:
            place = after if spans[after][0] >= window - 1 else after + 1
            found.setdefault(place, []).append(window)
    return found


def _cut_row(window: int, models: Models, windows: Mapping[str, int | None], names: Sequence[str]) -> str:
    who = [models.rulers[name].title for name in names if windows[name] == window]
    words = f"{window} tokens end here: {_listed(who)} {'reads' if len(who) == 1 else 'read'} no further"
    return (
        f'<tr class="cut" role="row"><td role="cell" colspan="{len(names) + 1}"><span>{escape(words)}</span></td></tr>'
    )


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["CLIP"]), _listed(["CLIP", "Long-CLIP", "DeBias-CLIP"])
    ('CLIP', 'CLIP, Long-CLIP and DeBias-CLIP')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _told(prompt: str, models: Models, windows: Mapping[str, int | None], *, count: int, tokens: int) -> str:
    """The caption: how long the prompt is, what is lost of it, what the models cannot know."""
    if not count:
        return "The sentences of the prompt appear here."
    lost = [
        f'<b class="loses">{escape(models.rulers[name].title)} loses {tokens - window + 2:,}</b>'
        for name, window in windows.items()
        if window is not None and tokens > window - 2
    ]
    words = f'<span class="count">{count_of(count, "sentence")}, {count_of(tokens, "token")}</span>'
    words += f": {', '.join(lost)}" if lost else ", all of which every encoder reads" if windows else ""
    if models.reads_t5:
        words += ". T5 reads the prompt too, in every picture alike; the tokens are CLIP's"
    if unknown := models.unknown_words(prompt):
        shown = ", ".join(word if len(word) <= 40 else f"{word[:39]}…" for word in unknown[:_WORDS])
        more = f" and {len(unknown) - _WORDS} more" if len(unknown) > _WORDS else ""
        words += f'. <span class="unknown">The embedded models were never trained on: {escape(shown)}{more}</span>'
    return words + "."


def _row(index: int, text: str, cells: Sequence[Cell], *, last: int) -> str:
    differs = " differs" if len({mark for mark, _ in cells}) > 1 else ""
    marks = "".join(cell for _, cell in cells)
    return (
        f'<tr class="sentence{differs}" role="row" data-sentence="{index}" tabindex="0" draggable="true">'
        f'<th scope="row" role="rowheader"><span class="place">{index + 1}</span>'
        f'<span class="text" dir="auto">{escape(text)}</span>{_acts(index, last)}</th>{marks}</tr>'
    )


def _acts(index: int, last: int) -> str:
    """The buttons of a row; each names its action and sentence in data attributes that the page's script reads."""

    def button(kind: str, sign: str, what: str, *, off: bool = False) -> str:
        return (
            f'<button type="button" data-act="{kind}" data-index="{index}" title="{what}" '
            f'aria-label="{what}: sentence {index + 1}"{" disabled" if off else ""}>{sign}</button>'
        )

    return (
        '<span class="acts">'
        + button("up", "↑", "Move up", off=index == 0)
        + button("down", "↓", "Move down", off=index == last)
        + button("first", "⇄ first", "Swap with the first", off=index == 0)
        + button("drop", "✕", "Drop", off=last == 0)
        + "</span>"
    )


def _unread(first: int, window: int | None, *, is_drawing: bool) -> Cell:
    """The cell of a sentence that is not drawn yet."""
    if window is not None and first >= window - 1:
        return _cell("not read", "not read")
    return "", f'<td role="cell" class="quiet">{"…" if is_drawing else ""}</td>'


def _cells(run: Run, track: Track) -> list[Cell]:
    """One cell per sentence; none before the first picture."""
    if not track.pictures:
        return []
    cells = []
    for index, sentence in enumerate(run.sentences):
        verdicts = [picture.verdicts[index] for picture in track.pictures]
        kind, mark = mark_of([verdict.mark for verdict in verdicts])
        score = [verdict.score for verdict in verdicts if verdict.score is not None]
        told = f"{'score' if len(verdicts) == 1 else 'mean score'} {sum(score) / len(score):.2f}" if score else ""
        if len(verdicts) == 1:
            told = told or verdicts[0].reason
        found = verdicts[0].found if len(verdicts) == 1 and kind not in ("drawn", "not read") else ""
        before = _before(run, track, sentence.text)
        cells.append(_cell(kind, mark, found=found, told=told, was=before if before != mark else ""))
    return cells


def _before(run: Run, track: Track, text: str) -> str:
    """The mark that a sentence had before it was moved; empty for a run that changes nothing."""
    earlier = run.earlier
    of = next((other for other in earlier.tracks if other.name == track.name), None) if earlier is not None else None
    index = next((i for i, s in enumerate(earlier.sentences) if s.text == text), None) if of is not None else None
    if index is None or not of.pictures:
        return ""
    return mark_of([picture.verdicts[index].mark for picture in of.pictures])[1]


def _cell(kind: str, mark: str, *, found: str = "", told: str = "", was: str = "") -> Cell:
    shade = kind if kind in ("drawn", "missing", "unsure", "some") else "quiet"
    also = f'<small class="was">was {escape(was)}</small>' if was else ""
    also += f'<small class="found">{escape(found)}</small>' if found else ""
    about = f'<small class="told">{escape(told)}</small>' if told else ""
    return mark, (
        f'<td role="cell" class="{shade}" title="{escape(told)}"><span class="mark"><i aria-hidden="true">'
        f'{_SIGNS.get(kind, _IN_PART)}</i> <span class="words">{escape(mark)}</span></span>{also}{about}</td>'
    )


def mark_of(marks: Sequence[str]) -> tuple[str, str]:
    """The kind of a cell and its words: one picture's mark, or that of all, or how many pictures show the sentence.

    >>> mark_of(["1 of 2"]), mark_of(["drawn", "drawn"]), mark_of(["drawn", "missing", "missing"])
    (('some', '1 of 2'), ('drawn', 'in 2 of 2'), ('some', 'in 1 of 3'))
    >>> mark_of(["not read", "not read"]), mark_of(["unsure", "missing"])
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


def table_route(models: Models, default: Sequence[str]) -> Route:
    """The route: answers with the table of the text in its body, for the encoders in its query; keeps nothing."""

    async def table(request: HttpRequest) -> HTMLResponse:
        prompt = (await request.body()).decode("utf-8", errors="replace")
        asked = request.query_params.get("encoders", "").split(",")
        names = [name for name in models.rulers if name in asked] or default
        return HTMLResponse(await run_in_threadpool(live_table, prompt, models, names))

    return Route("/rulers", table, methods=["POST"], include_in_schema=False)
