"""Robustness probes: what is done to a caption before it is read; a table of names.

DeBias-CLIP's (arXiv 2602.22419): keep, move, remove, first2, swap2, first_only, and `photo0` to `photo5`, so many times
"This is a photo." in front of the first two sentences. `pads20` to `pads120`: so many pads in front of the caption as
it is, as in DeBias-CLIP's training; they are tokens, no text (`pads_of`). HyFL's (arXiv 2607.00428): remove, shuffle,
keep2, keep3, word_drop. Long-CLIP's effective length: `words10`, `words20`, ..., the first so many words, words being
what white space parts. Open in the papers, decided here: keep2 and keep3 keep the order; word_drop drops exactly half
of the words, rounded down; what is drawn depends on the seed, the probe and the caption alone, not on its place in the
set.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence

from debias_sd.sentences import first_only, join_sentences, split_sentences, without_summary

Probe = Callable[[str], str]
FILLER = "This is a photo."
WORD_STEP = 10
MOST_WORDS = 200


def remove_summary(text: str) -> str:
    """Return `text` without its first sentence (method step 1); a one-sentence caption keeps its sentence.

    >>> remove_summary("A park. A dog runs. A kite flies.")
    'A dog runs. A kite flies.'
    """
    return join_sentences(without_summary(split_sentences(text)))


def move_summary(text: str) -> str:
    """Return `text` with sentences 1 and 4 swapped, or 1 and the last where there are fewer than 4.

    The paper leaves captions of fewer than 4 sentences open.
    """
    sentences = split_sentences(text)
    if sentences:
        other = min(3, len(sentences) - 1)
        sentences[0], sentences[other] = sentences[other], sentences[0]
    return join_sentences(sentences)


PROBES: dict[str, Probe] = {
    "keep": lambda text: text,
    "move": move_summary,
    "remove": remove_summary,
    "first2": lambda text: join_sentences(split_sentences(text)[:2]),
    "swap2": lambda text: join_sentences(split_sentences(text)[:2][::-1]),
    "first_only": first_only,
}
GROUPS = {
    "debias": tuple(PROBES),
    "padding": tuple(f"photo{k}" for k in range(6)),
    "pads": ("pads20", "pads40", "pads80", "pads120"),
    "hyfl": ("remove", "shuffle", "keep2", "keep3", "word_drop"),
    "length": tuple(f"words{count}" for count in range(WORD_STEP, MOST_WORDS + 1, WORD_STEP)),
}
_RANDOM = {
    "shuffle": lambda text, rng: join_sentences(_shuffled(split_sentences(text), rng)),
    "keep2": lambda text, rng: join_sentences(_kept(split_sentences(text), 2, rng)),
    "keep3": lambda text, rng: join_sentences(_kept(split_sentences(text), 3, rng)),
    "word_drop": lambda text, rng: " ".join(_kept(text.split(), -(-len(text.split()) // 2), rng)),
}
NAMES = tuple(dict.fromkeys(name for names in GROUPS.values() for name in names))


def _shuffled(parts: Sequence[str], rng: random.Random) -> list[str]:
    return rng.sample(list(parts), len(parts))


def _kept(parts: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """`count` of the parts, or all where there are fewer, in their order."""
    places = sorted(rng.sample(range(len(parts)), min(count, len(parts))))
    return [parts[place] for place in places]


def probe_of(name: str, *, seed: int) -> Probe:
    """Return the probe of one of NAMES.

    >>> probe_of("photo2", seed=0)("A park. A dog runs. A kite flies.")
    'This is a photo. This is a photo. A park. A dog runs.'
    >>> probe_of("words10", seed=0)("one two three")
    'one two three'
    """
    if name in PROBES or name in GROUPS["pads"]:
        return PROBES["keep" if name in GROUPS["pads"] else name]
    if name in _RANDOM:
        return lambda text: _RANDOM[name](text, random.Random(f"probe/{seed}/{name}/{text}"))
    if name.startswith("photo"):
        return lambda text: join_sentences([*[FILLER] * int(name[5:]), *split_sentences(text)[:2]])
    return lambda text: " ".join(text.split()[: int(name[5:])])


def pads_of(name: str) -> int:
    """Return how many pads precede the caption under a probe.

    >>> pads_of("pads20"), pads_of("keep")
    (20, 0)
    """
    return int(name.removeprefix("pads")) if name in GROUPS["pads"] else 0


def probe_names(asked: Sequence[str]) -> list[str]:
    """Return the probes that the user names, groups and `all` spelled out, `keep` first; ValueError for an unknown one.

    >>> probe_names(["hyfl"])
    ['keep', 'remove', 'shuffle', 'keep2', 'keep3', 'word_drop']
    """
    names = ["keep"]
    for name in asked:
        if name == "all":
            names += NAMES
        elif name in GROUPS:
            names += GROUPS[name]
        elif name in NAMES:
            names.append(name)
        else:
            near = difflib.get_close_matches(name, [*NAMES, *GROUPS, "all"], n=1, cutoff=0.0)[0]
            raise ValueError(
                f"unknown probe {name!r}; the nearest is {near!r}, the groups are all, {', '.join(GROUPS)}."
            )
    return list(dict.fromkeys(names))


def useful_probes(names: Sequence[str], captions: Sequence[str]) -> list[str]:
    """Leave out the lengths past the longest caption: they would all be `keep`."""
    longest = max(len(text.split()) for text in captions)
    return [name for name in names if not name.startswith("words") or int(name[5:]) < longest + WORD_STEP]
