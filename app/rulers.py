"""Token rulers: for each encoder the prompt coloured by window, cut at 77 and 248, what it loses struck through.

Plain strings of HTML; every piece of the prompt is escaped.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left
from collections.abc import Sequence
from html import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from app.models import Models, Ruler
from app.settings import PROMPT_CHARACTERS
from debias_sd.text import count_of
from debias_sd.tokens import CONTEXTS, check_text

_SHOWN = 6_000  # characters of a prompt that a ruler spells out; the rest is counted
_WORD = re.compile(r"[^ \t\r\n]+")  # fewer separators than the tokenizer knows: a word here may be several of its own
_REMEMBERED, _LONG_WORD = 20_000, 100  # words per encoder, and their length in characters


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A piece of the prompt: number of its window from 1, and whether the encoder reads it."""

    text: str
    window: int
    is_read: bool


def cuts_of(window: int) -> list[int]:
    """Where the text of a ruler changes: content tokens before the end of 77, 248 and the encoder's own window.

    >>> cuts_of(77), cuts_of(248), cuts_of(512)
    ([75, 246], [75, 246], [75, 246, 510])
    """
    return sorted({length - 2 for length in (*CONTEXTS, window)})


def stretches_of(prompt: str, starts: Sequence[int], *, window: int, reads_all: bool = False) -> list[Stretch]:
    """`prompt` in pieces; `starts[i]` is the character at which token i begins. The pieces joined are the prompt.

    What comes after the window is not read, or is in other windows.
    """
    pieces, begin = [], 0
    for number, cut in enumerate([*cuts_of(window), len(starts)], start=1):
        end = starts[cut] if cut < len(starts) else len(prompt)
        if end > begin:
            pieces.append(Stretch(prompt[begin:end], number, reads_all or cut <= window - 2))
        begin = max(begin, end)
    return pieces


def token_starts(ruler: Ruler, prompt: str) -> list[int]:
    """The first character of every token of `prompt`, start and end token not counted.

    CLIP's tokens never reach over white space: each word is split once and remembered, so that a key stroke in the
    longest prompt costs the word that it changed. The caller holds the models' `counting` lock.
    """
    if not _is_by_words(ruler.tokenizer):
        return _split(ruler, [prompt])[0]
    words = [(found.start(), found[0]) for found in _WORD.finditer(prompt)]
    new = list(dict.fromkeys(word for _, word in words if word not in ruler.words))
    split = dict(zip(new, _split(ruler, new), strict=True)) if new else {}
    starts = [
        start + offset for start, word in words for offset in (split[word] if word in split else ruler.words[word])
    ]
    if len(ruler.words) + len(split) > _REMEMBERED:
        ruler.words.clear()
    ruler.words.update((word, offsets) for word, offsets in split.items() if len(word) <= _LONG_WORD)
    return starts


def _split(ruler: Ruler, texts: list[str]) -> list[list[int]]:
    encoded = ruler.tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True, verbose=False
    )
    return [[start for start, _ in offsets] for offsets in encoded["offset_mapping"]]


def _is_by_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text's tokens are those of its words; a learnt token that holds white space is in the way."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values())
    return isinstance(tokenizer, CLIPTokenizer) and not any(_WORD.fullmatch(content) is None for content in added)


def ruler_html(ruler: Ruler, prompt: str, starts: Sequence[int]) -> str:
    """One encoder's ruler: title and counts, a bar with its cuts, the text."""
    tokens, room = len(starts), ruler.window - 2
    lost = 0 if ruler.reads_all else max(0, tokens - room)
    told = f"{tokens:,} of {room:,} tokens" if not lost else f"{tokens:,} tokens, reads {room:,}, loses {lost:,}"
    told = f"{tokens:,} tokens, reads all" if ruler.reads_all else told
    shown = prompt[:_SHOWN]
    text = "".join(
        _stretch_html(piece)
        for piece in stretches_of(shown, _within(starts, len(shown)), window=ruler.window, reads_all=ruler.reads_all)
    )
    rest = count_of(len(prompt) - _SHOWN, "more character")
    more = f'<span class="more"> … and {rest}</span>' if len(prompt) > _SHOWN else ""
    return (
        f'<section class="ruler{" loses" if lost else ""}" aria-label="Tokens of {escape(ruler.title)}">'
        f"<header><h2>{escape(ruler.title)}</h2>"
        f'<span class="count" title="without the start and the end token">{told}</span></header>'
        f"{_bar_html(tokens, ruler)}"
        f'<p class="text" dir="auto" tabindex="0" role="group" aria-label="What {escape(ruler.title)} reads">'
        f"{text}{more}</p></section>"
    )


def _within(starts: Sequence[int], end: int) -> list[int]:
    return list(starts[: bisect_left(starts, end)])


def _stretch_html(piece: Stretch) -> str:
    tag, note = ("span", "") if piece.is_read else ("del", ' title="this encoder does not read this"')
    return f'<{tag} class="w{min(piece.window, 3)}"{note}>{escape(piece.text)}</{tag}>'


def _bar_html(tokens: int, ruler: Ruler) -> str:
    """A bar as long as the prompt or the longest window; its filled part is what is read, its ticks are the cuts."""
    window = ruler.window
    room = tokens if ruler.reads_all else window - 2
    whole = max(tokens, CONTEXTS[-1] - 2, window - 2)
    parts, begin = [], 0
    for number, cut in enumerate([*cuts_of(window), tokens], start=1):
        end = min(cut, tokens)
        if end > begin:
            kind = f"w{min(number, 3)}" + ("" if end <= room else " lost")
            parts.append(f'<i class="{kind}" style="width:{100 * (end - begin) / whole:.2f}%"></i>')
            begin = end
    ticks = "".join(
        f'<b style="left:{100 * (length - 2) / whole:.2f}%"{" class=own" if length == window else ""}>{length}</b>'
        for length in sorted({*CONTEXTS, window})
    )
    return f'<div class="bar" aria-hidden="true"><div class="fill">{"".join(parts)}</div>{ticks}</div>'


def rulers_html(prompt: str, models: Models, names: Sequence[str] | None = None) -> str:
    """The rulers of the named encoders (default: all); a prompt past the limit gets one sentence in their place."""
    if len(prompt) > PROMPT_CHARACTERS:
        return (
            f'<p class="fault" role="alert">The prompt has {len(prompt):,} characters and may have at most '
            f"{PROMPT_CHARACTERS:,}; shorten it.</p>"
        )
    try:
        check_text(prompt)
    except ValueError as error:
        return f'<p class="fault" role="alert">{escape(str(error))}</p>'
    chosen = [models.rulers[name] for name in names or models.rulers]
    starts: dict[int, list[int]] = {}
    with models.counting:
        for ruler in chosen:  # those of one vocabulary are counted once
            if id(ruler.words) not in starts:
                starts[id(ruler.words)] = token_starts(ruler, prompt)
    rulers = [ruler_html(ruler, prompt, starts[id(ruler.words)]) for ruler in chosen]
    return f'<div class="rulers">{"".join(rulers)}</div>'


def ruler_route(models: Models) -> Route:
    """The route: answers with the rulers' HTML, or one sentence in their place; keeps nothing."""

    async def rulers(request: Request) -> HTMLResponse:
        prompt = (await request.body()).decode("utf-8", errors="replace")
        return HTMLResponse(await run_in_threadpool(rulers_html, prompt, models))

    return Route("/rulers", rulers, methods=["POST"], include_in_schema=False)
