"""Prompts: those to start from, and what becomes of one when its sentences are moved.

The operator's own prompts (`--examples FILE`) come first; their titles are text, which the page never takes for markup.
The ones for real pipelines have the form of the paper's Stable Diffusion XL figure (arXiv 2602.22419): "photo,
detailed, 8k, ", then a long caption whose late sentences name details; the wording is this project's. Moves act on the
sentences as `debias_sd.sentences` splits them, so that Move and Remove are the probes of the evaluation.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.request import PROMPT_CHARACTERS, Settings
from debias_sd.datasets.world import prompt_set
from debias_sd.prompts.files import read_prompt_file
from debias_sd.sentences import join_sentences, split_sentences
from debias_sd.shapes.caption import long_caption
from debias_sd.shapes.scene import random_scene
from debias_sd.text import count_of

_TITLE = 60  # characters


def read_examples(path: str | Path) -> dict[str, str]:
    """Prompts by title, in the file's order; ValueError with one sentence for a fault of the file or a long prompt."""
    prompts = read_prompt_file(path).prompts
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt.text) > PROMPT_CHARACTERS:
            raise ValueError(
                f"prompt {number} of {path} has {len(prompt.text):,} characters and may have at most "
                f"{PROMPT_CHARACTERS:,}; shorten it."
            )
    in_folder = Path(path).expanduser().is_dir()
    has_id = [in_folder or prompt.row.get("id") is not None for prompt in prompts]
    return titled((p.id if named else p.text, p.text) for named, p in zip(has_id, prompts, strict=True))


def titled(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Prompts by title on one line; of those with one title the second gets a number.

    >>> titled([("A", "one"), ("A", "two"), ("A", "three")])
    {'A': 'one', 'A (2)': 'two', 'A (3)': 'three'}
    """
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}  # the last one that a title has, so that none is tried twice
    for title, prompt in pairs:
        short = name = _shortened(title) or "Untitled"
        while name in found:
            numbers[short] = numbers.get(short, 1) + 1
            name = f"{short} ({numbers[short]})"
        found[name] = prompt
    return found


def _shortened(title: str) -> str:
    """`title` on one line of at most 60 characters, cut after a word where there is one.

    >>> _shortened("photo, detailed, 8k, A sunlit kitchen with a long wooden table stands")
    'photo, detailed, 8k, A sunlit kitchen with a long wooden …'
    """
    line = " ".join(title.split())
    if len(line) <= _TITLE:
        return line
    words, space, _ = line[: _TITLE - 1].rpartition(" ")
    return f"{words} …" if space else f"{line[: _TITLE - 2]} …"


# Of the first 40 scenes, with seed 0 and the page's settings: the one whose shares are nearest to the means over 200
# prompts (CLIP, Long-CLIP and DeBias-CLIP draw 5, 8 and 9 of 9 sentences), one where Long-CLIP loses more of the end
# (4, 6, 9 of 10), one where it draws more than DeBias-CLIP (5, 10, 9 of 10), and the first.
_SCENES = (38, 1, 28, 0)
_PHOTOS = {
    "A kitchen at noon": (
        "photo, detailed, 8k, A sunlit kitchen with a long wooden table stands in an old farmhouse. The walls are "
        "white and the floor is made of dark tiles. A loaf of bread lies on a striped cloth. "
        "Copper pans hang in a row above the stove. Through the window behind the sink one sees a row of apple trees. "
        "A grey cat sleeps on the chair at the far end. Next to the bread stands a blue jug that holds three yellow "
        "tulips. A red bicycle leans against the wall beside the open door."
    ),
    "A harbor after rain": (
        "photo, detailed, 8k, A small harbor lies in the evening light after the rain. Fishing boats are tied to a "
        "stone pier in two rows. The water is calm and mirrors the orange sky. Wooden houses with steep roofs stand "
        "along the quay. Nets are drying on a rack near the first boat. A man in a yellow coat walks towards the "
        "lighthouse at the end of the pier. Two white dogs wait beside a stack of green crates. On the roof of the "
        "nearest house sits a black heron."
    ),
    "A library corner": (
        "photo, detailed, 8k, A corner of an old library is lit by a single brass lamp. Shelves of leather-bound books "
        "reach up to the ceiling. A wide armchair with a plaid blanket stands next to a round table. The carpet shows "
        "a faded pattern of leaves. Rain runs down the tall window on the right. On the table a silver teapot stands "
        "beside an open atlas. A wooden ladder leans against the shelves in the back. At the foot of the ladder lies a "
        "single red glove."
    ),
}


def examples(settings: Settings) -> dict[str, str]:
    """Example prompts by title: the operator's own ones first."""
    return titled([*settings.own_examples.items(), *_built_in(is_embedded=settings.is_embedded).items()])


def _built_in(*, is_embedded: bool) -> dict[str, str]:
    if not is_embedded:
        return _PHOTOS
    captions = prompt_set(0, count=max(_SCENES) + 1).captions
    return {
        f"Scene {number}: {len(captions[index].sentences)} sentences": captions[index].text
        for number, index in enumerate(_SCENES, start=1)
    }


def surprise(rng: random.Random, settings: Settings, *, shown: str) -> str:
    """A prompt that is not the one `shown`: a fresh scene of the embedded world, or one of a real base's examples."""
    if settings.is_embedded:
        scene = random_scene(rng)
        return long_caption(scene, rng).text
    return rng.choice([prompt for prompt in examples(settings).values() if prompt != shown])


MOVES = {  # by what the button says, as it is for four sentences or more
    "swap": "Swap sentences 1 and 4",
    "drop": "Drop the first sentence",
    "last": "First sentence last",
}


def moved(prompt: str, kind: str) -> str:
    """`prompt` after one of `MOVES`; ValueError when it has too few sentences for it.

    Of two or three sentences the last one is swapped with the first.

    >>> moved("One. Two. Three. Four. Five.", "swap"), moved("One. Two.", "last"), moved("One. Two.", "drop")
    ('Four. Two. Three. One. Five.', 'Two. One.', 'Two.')
    """
    count = len(split_sentences(prompt))
    if count < 2:
        raise ValueError(f"the prompt has {count_of(count, 'sentence')}; write two or more to move one.")
    if kind == "drop":
        return move_sentence(prompt, {"kind": "drop", "index": 0})
    if kind == "swap":
        return move_sentence(prompt, {"kind": "first", "index": min(3, count - 1)})
    return move_sentence(prompt, {"kind": "to", "index": 0, "to": count - 1})


def move_sentence(prompt: str, action: Mapping[str, Any]) -> str:
    """Return `prompt` after one action: {"kind": "up" | "down" | "first" | "drop" | "to", "index": i, "to": j}.

    Sentences are counted from 0. An index that is not there, as after a change in another tab, changes nothing.

    >>> move_sentence("One cat. Two dogs. Three birds.", {"kind": "first", "index": 2})
    'Three birds. Two dogs. One cat.'
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
