"""The prompt's sentences as a list to reorder: up, down, swapped with the first, dropped, or dragged.

Moves act on the prompt's sentences as `debias_sd.captions` splits them, so that Move and Remove are the probes of the
evaluation. HTML of the list and the pure moves; every sentence is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from debias_sd.captions import join_sentences, split_sentences

_SHOWN = 60  # sentences that the list holds; a longer prompt is edited as text


def move_sentence(prompt: str, action: Mapping[str, Any]) -> str:
    """Return `prompt` after one action: {"kind": "up" | "down" | "first" | "drop" | "to", "index": i, "to": j}.

    Sentences are counted from 0. An index that is not there, as after a change in another tab, changes nothing.

    >>> move_sentence("One. Two. Three.", {"kind": "first", "index": 2})
    'Three. Two. One.'
    >>> move_sentence("One. Two. Three.", {"kind": "to", "index": 0, "to": 2})
    'Two. Three. One.'
    >>> move_sentence("One. Two.", {"kind": "drop", "index": 5})
    'One. Two.'
    """
    sentences = split_sentences(prompt)
    kind, index, to = action.get("kind"), action.get("index"), action.get("to")
    if not isinstance(index, int) or not 0 <= index < len(sentences):
        return prompt
    target = {"up": index - 1, "down": index + 1, "first": 0, "to": to}.get(kind)
    if kind == "drop":
        del sentences[index]
    elif not isinstance(target, int) or not 0 <= target < len(sentences):
        return prompt
    elif kind == "first":
        sentences[0], sentences[index] = sentences[index], sentences[0]
    else:
        sentences.insert(target, sentences.pop(index))
    return join_sentences(sentences)


def sentences_html(prompt: str) -> str:
    """The list with its buttons; each names its action and sentence in data attributes that the page's script reads."""
    sentences = split_sentences(prompt)
    if not sentences:
        return '<p class="hint">The sentences of the prompt appear here: move one, drop it, swap it with the first.</p>'
    last = len(sentences) - 1
    items = [_item(text, index, last) for index, text in enumerate(sentences[:_SHOWN])]
    more = f"<li class=more>and {len(sentences) - _SHOWN} more</li>" if len(sentences) > _SHOWN else ""
    return f'<ol class="sentences" aria-label="Sentences of the prompt">{"".join(items)}{more}</ol>'


def _item(text: str, index: int, last: int) -> str:
    place = index + 1

    def button(kind: str, sign: str, what: str, *, off: bool = False) -> str:
        return (
            f'<button type="button" data-act="{kind}" data-index="{index}" title="{what}" '
            f'aria-label="{what}: sentence {place}"{" disabled" if off else ""}>{sign}</button>'
        )

    buttons = (
        button("up", "↑", "Move up", off=index == 0)
        + button("down", "↓", "Move down", off=index == last)
        + button("first", "⇄ first", "Swap with the first", off=index == 0)
        + button("drop", "✕", "Drop", off=last == 0)
    )
    return (
        f'<li draggable="true" data-index="{index}"><span class="grip" aria-hidden="true">⠿</span>'
        f'<span class="place">{place}</span><span class="text" dir="auto">{escape(text)}</span>'
        f'<span class="acts">{buttons}</span></li>'
    )
