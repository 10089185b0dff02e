"""Captions of scenes, shaped like real long captions: a summary sentence first, then one sentence per thing.

The wording varies (templates, synonyms, optional asides) and every name of a thing or a place that is used here can be
read back below. A caption of 7 to 9 things has 90 to 240 CLIP tokens. Nothing here knows about tokenizers:
every word below is one token of the world's vocabulary, so `length` counts words and punctuation marks.

The inverse, for prompts that a person typed, finds noun phrases (size, colour, shape) and places in
the order in which they stand; the n-th place belongs to the n-th thing. A sentence that names no complete thing gives
an empty list, and is then not judged.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence

from debias_sd.shapes.scene import BACKGROUNDS, COLOURS, COLUMNS, ROWS, Scene, Thing

SHAPE_WORDS = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "cross": ("cross", "plus"),
    "ring": ("ring", "hoop"),
}
SIZE_WORDS = {"small": ("small", "tiny", "little"), "large": ("large", "big")}
ROW_WORDS = {"top": ("top", "upper"), "middle": ("middle", "center"), "bottom": ("bottom", "lower")}

SUMMARIES = (
    "This picture shows {a} in {p} and {b} in {q} on a {ground} background, with several smaller things around them.",
    "A {ground} picture with {a} in {p} and {b} in {q}, together with a number of other shapes.",
    "The image shows a {ground} background on which {a} in {p} and {b} in {q} stand out among other things.",
    "An image of {a} in {p} and {b} in {q}, on a {ground} background, with many other shapes around.",
)
SENTENCES = (
    "There is {a} in {p}.",
    "In {p}, {a} can be seen.",
    "In {p} there is {a}.",
    "{A} sits in {p}.",
    "{P} holds {a}.",
    "You can also see {a} in {p}.",
    "Looking at {p}, one finds {a}.",
    "Also, {a} is placed in {p}.",
)
ASIDES = ("", "", "", ", clearly visible", ", easy to miss", ", with clean edges", ", standing on its own")
SHORT = "{A} with {b}, {p} and {q}."  # used in evaluation only: no encoder is trained on this template


@dataclasses.dataclass(frozen=True)
class Caption:
    """Sentences in order and, for each, the things that it names (the summary names two)."""

    sentences: tuple[str, ...]
    named: tuple[tuple[Thing, ...], ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def length(text: str) -> int:
    """Tokens of `text` in the world's vocabulary, without the start and end tokens."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def name_thing(thing: Thing, rng: random.Random) -> str:
    """E.g. `a small red star`; no size word begins with a vowel, so the article is always `a`."""
    return f"a {rng.choice(SIZE_WORDS[thing.size])} {thing.colour} {rng.choice(SHAPE_WORDS[thing.shape])}"


def name_place(cell: int, rng: random.Random, *, article: bool = True) -> str:
    """E.g. `the upper left corner`, `the middle right`, `the center`."""
    row, column = ROWS[cell // 3], COLUMNS[cell % 3]
    if (row, column) == ("middle", "center"):
        place = rng.choice(("center", "very center"))
    else:
        words = ROW_WORDS[row] if column != "center" else ROW_WORDS[row][:2]
        place = f"{rng.choice(words)} {column}"
        if row != "middle" and column != "center" and rng.random() < 0.3:
            place += " corner"
    return f"the {place}" if article else place


def _fill(template: str, things: tuple[Thing, ...], scene: Scene, rng: random.Random) -> str:
    a, b = name_thing(things[0], rng), name_thing(things[-1], rng)
    p, q = name_place(things[0].cell, rng), name_place(things[-1].cell, rng)
    return template.format(a=a, b=b, p=p, q=q, A=_capital(a), P=_capital(p), ground=scene.background)


def summary_sentence(scene: Scene, rng: random.Random) -> str:
    """The opening sentence: both main things with their places, and the background."""
    return _fill(rng.choice(SUMMARIES), scene.main, scene, rng)


def detail_sentence(thing: Thing, scene: Scene, rng: random.Random) -> str:
    """One sentence that names `thing` and its place."""
    sentence = _fill(rng.choice(SENTENCES), (thing,), scene, rng)
    return sentence[:-1] + rng.choice(ASIDES) + "."


def long_caption(scene: Scene, rng: random.Random, *, late: int | None = None) -> Caption:
    """The summary, then one sentence per thing in random order; thing number `late` comes in the second half."""
    order = list(range(len(scene.things)))
    rng.shuffle(order)
    if late is not None:
        order.remove(late)
        order.insert(rng.randint((len(order) + 1) // 2 + 1, len(order)), late)
    things = [scene.things[index] for index in order]
    sentences = [summary_sentence(scene, rng), *(detail_sentence(thing, scene, rng) for thing in things)]
    return Caption(tuple(sentences), (scene.main, *((thing,) for thing in things)))


def tag_caption(scene: Scene, rng: random.Random) -> Caption:
    """A list of tags as Stable Diffusion users write them; nine things fit into 77 tokens.

    Each tag counts as one sentence of the `Caption`; all but the last end in a comma.
    """
    things = list(scene.things)
    rng.shuffle(things)
    tags = [f"{name_thing(t, rng)[2:]} {name_place(t.cell, rng, article=False)}" for t in things]
    named: list[tuple[Thing, ...]] = [(thing,) for thing in things]
    at = 0 if rng.random() < 0.5 else len(tags)
    tags.insert(at, f"{scene.background} background")
    named.insert(at, ())
    return Caption((*(tag + "," for tag in tags[:-1]), tags[-1]), tuple(named))


def sentence_caption(scene: Scene, rng: random.Random, *, limit: int = 75) -> Caption:
    """Detail sentences about the scene's things in random order, as many as fit into `limit` tokens.

    The background comes first or last, in a sentence of its own.
    """
    things = list(scene.things)
    rng.shuffle(things)
    ground = f"The background is {scene.background}."
    sentences: list[str] = []
    named: list[tuple[Thing, ...]] = []
    left = limit - length(ground)
    for thing in things:
        sentence = detail_sentence(thing, scene, rng)
        if length(sentence) > left:
            break
        left -= length(sentence)
        sentences.append(sentence)
        named.append((thing,))
    at = 0 if rng.random() < 0.5 else len(sentences)
    sentences.insert(at, ground)
    named.insert(at, ())
    return Caption(tuple(sentences), tuple(named))


def opening_caption(scene: Scene, rng: random.Random, *, limit: int = 75) -> Caption:
    """The summary and, in random order, sentences about the details and then the main things, while they fit."""
    summary = summary_sentence(scene, rng)
    left = limit - length(summary)
    details, main = list(scene.details), list(scene.main)
    rng.shuffle(details)
    rng.shuffle(main)
    parts: list[tuple[str, tuple[Thing, ...]]] = []
    for thing in [*details, *main]:
        sentence = detail_sentence(thing, scene, rng)
        if length(sentence) > left:
            break
        left -= length(sentence)
        parts.append((sentence, (thing,)))
    rng.shuffle(parts)
    return Caption((summary, *(sentence for sentence, _ in parts)), (scene.main, *(named for _, named in parts)))


def short_caption(things: tuple[Thing, Thing], scene: Scene, rng: random.Random) -> Caption:
    """Two things in one sentence of a template that no encoder was trained on (evaluation only)."""
    return Caption((_fill(SHORT, things, scene, rng),), (things,))


def words() -> list[str]:
    """Every lower-case word that the captions above can hold, sorted: the world's vocabulary."""
    texts = [*SUMMARIES, *SENTENCES, *ASIDES, SHORT, "the background is very corner"]
    names = [*ROWS, *COLUMNS, "red green blue yellow purple orange white gray black beige"]
    groups = [*SHAPE_WORDS.values(), *SIZE_WORDS.values(), *ROW_WORDS.values()]
    plain = re.sub(r"\{\w+\}", " ", " ".join([*texts, *names, *(w for g in groups for w in g)]))
    return sorted(set(re.findall(r"[a-z]+", plain.lower())))


def _inverse(words: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {word: name for name, synonyms in words.items() for word in synonyms}


_SHAPE_OF, _SIZE_OF, _ROW_OF = _inverse(SHAPE_WORDS), _inverse(SIZE_WORDS), _inverse(ROW_WORDS)
_THING = re.compile(
    rf"\b({'|'.join(_SIZE_OF)})\s+({'|'.join(COLOURS)})\s+({'|'.join(_SHAPE_OF)})s?\b",
    re.IGNORECASE,
)
_PLACE = re.compile(
    rf"\b(?:({'|'.join(_ROW_OF)})\s+({'|'.join(COLUMNS)}|middle)|(center|middle))\b",
    re.IGNORECASE,
)


def read_sentence(sentence: str) -> list[Thing]:
    """The things that `sentence` names with size, colour, shape and place; `[]` when it names none completely."""
    looks = _THING.findall(sentence)
    cells = []
    for row, column, _ in _PLACE.findall(sentence):
        if row:
            column = "center" if column.lower() == "middle" else column.lower()
            cells.append(3 * ROWS.index(_ROW_OF[row.lower()]) + COLUMNS.index(column))
        else:
            cells.append(4)
    if not looks or len(looks) != len(cells):
        return []
    return [
        Thing(cell, colour.lower(), _SHAPE_OF[shape.lower()], _SIZE_OF[size.lower()])
        for cell, (size, colour, shape) in zip(cells, looks, strict=True)
    ]


_GROUND = re.compile(
    rf"\b({'|'.join(BACKGROUNDS)})(?: background| picture)|background is ({'|'.join(BACKGROUNDS)})\b", re.I
)


def read_background(sentences: Sequence[str]) -> str | None:
    """The background that a prompt's sentences name, the first one; None where they name none.

    >>> read_background(["A gray picture with a small red star in the center.", "The background is white."])
    'gray'
    """
    found = (match for sentence in sentences for match in _GROUND.finditer(sentence))
    return next(((match[1] or match[2]).lower() for match in found), None)


def repeated(sentences: Sequence[str]) -> list[bool]:
    """Whether each sentence names things, and only such as the first one, the summary, names too.

    >>> first = "There is a small red star in the top left and a large blue ring in the center."
    >>> repeated([first, "A large blue ring sits in the center.", "A dog runs."])
    [False, True, False]
    """
    named = [read_sentence(sentence) for sentence in sentences]
    return [index > 0 and bool(things) and set(things) <= set(named[0]) for index, things in enumerate(named)]
