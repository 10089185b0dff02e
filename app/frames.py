"""A picture in its frame, with the places where a judge or the model looked for each sentence; the row of small ones.

Every text that a person or a model wrote is escaped. Highlighting is the page's script: elements that share
`data-sentence` light up together.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from app.previews import data_url, thumb
from app.run import Picture, Run, Track
from app.scores import boxes_of, mean_of
from debias_sd.comparison import Sentence

LETTERS = "ABCDEF"
_WITH_WORDS = 3  # small pictures in a row that have room for a word below them


def frame_html(image: np.ndarray, alt: str, *, looks: str = "") -> str:
    """A finished picture; the embedded world's few pixels stay sharp."""
    pixelated = "pixelated" if image.shape[0] <= 64 else ""
    return f'<div class="frame"><img class="{pixelated}" src="{data_url(image)}" alt="{escape(alt)}">{looks}</div>'


def empty_frame_html(words: str) -> str:
    """The place of a picture that is not there."""
    return f'<div class="frame empty"><p>{escape(words)}</p></div>'


def looks_html(picture: Picture, sentences: Sequence[Sentence]) -> str:
    """Boxes (the checker's cells) or maps (a real UNet's attention), each with its sentence's number."""
    boxes = "".join(
        f'<span class="look" data-sentence="{index}" '
        f'style="left:{left:.2f}%;top:{top:.2f}%;width:{width:.2f}%;height:{height:.2f}%"></span>'
        for index, sentence in enumerate(sentences)
        for left, top, width, height in boxes_of(sentence)
    )
    return boxes + "".join(
        f'<img class="map" data-sentence="{index}" src="{look}" alt="">'
        for index, look in enumerate(picture.maps)
        if look is not None
    )


def strip_html(run: Run) -> str:
    """The first pictures in one small row, for screens on which the panels do not fit side by side; they say it all.

    It has its full height from the start, so that nothing moves when a picture comes.
    """
    return _strip([_strip_item(run, track) for track in run.tracks])


def blind_strip_html(pictures: Sequence[Picture | None]) -> str:
    """The same row for a round of a blind vote: letters for names."""
    return _strip(
        [
            empty_frame_html("") + LETTERS[place]
            if picture is None
            else frame_html(thumb(picture.image), "") + LETTERS[place]
            for place, picture in enumerate(pictures)
        ]
    )


def _strip_item(run: Run, track: Track) -> str:
    if not track.pictures:
        return f"{empty_frame_html('')}{_name(track.title)}{track.state}"
    first = track.pictures[0]
    share = mean_of([picture.score.drawn for picture in track.pictures])
    words = " drawn" if len(run.tracks) <= _WITH_WORDS else ""
    told = "not judged" if share is None else f"{share:.0f} %{words}"
    frame = frame_html(thumb(first.image), "", looks=looks_html(first, run.sentences))
    return f"{frame}{_name(track.title)}{told}"


def _name(title: str) -> str:
    return f'<span class="name">{escape(title)}</span>'


def _strip(items: Sequence[str]) -> str:
    return f'<ul class="strip" aria-hidden="true">{"".join(f"<li>{item}</li>" for item in items)}</ul>'
