"""Captions as lists of sentences: the short caption of DeBias-CLIP, and the probes that move or drop sentences.

Source: DeBias-CLIP (arXiv 2602.22419), sections on sentence-level augmentation and robustness. The paper names no
sentence splitter and no join string: here it is `split_sentences`, and sentences are joined by one space.
"""

import random
from collections.abc import Callable, Sequence

from debias_sd.sentences import split_sentences


def join_sentences(sentences: Sequence[str]) -> str:
    """Return `sentences` as one text, one space between them."""
    return " ".join(sentences)


def without_summary(sentences: Sequence[str]) -> list[str]:
    """Return all sentences but the first; a single sentence stays."""
    return list(sentences[1:] or sentences)


def sample_sentences(sentences: Sequence[str], rng: random.Random) -> list[str]:
    """Return n of the sentences in random order, n uniform in 1 to all of them, each at most once."""
    if not sentences:
        return []
    return rng.sample(list(sentences), rng.randint(1, len(sentences)))


def remove_summary(text: str) -> str:
    """Return `text` without its first sentence (method step 1); a one-sentence caption keeps its sentence.

    >>> remove_summary("A park. A dog runs. A kite flies.")
    'A dog runs. A kite flies.'
    """
    return join_sentences(without_summary(split_sentences(text)))


def keep_caption(text: str) -> str:
    """Return `text` as it is: the probe that changes nothing."""
    return text


def move_summary(text: str) -> str:
    """Return `text` with sentences 1 and 4 swapped, or 1 and the last where there are fewer than 4.

    The paper leaves captions of fewer than 4 sentences open.
    """
    sentences = split_sentences(text)
    if sentences:
        other = min(3, len(sentences) - 1)
        sentences[0], sentences[other] = sentences[other], sentences[0]
    return join_sentences(sentences)


def first_two(text: str) -> str:
    """Return the first two sentences of `text`."""
    return join_sentences(split_sentences(text)[:2])


def swap_two(text: str) -> str:
    """Return the first two sentences of `text`, the second one first."""
    return join_sentences(split_sentences(text)[:2][::-1])


def first_only(text: str) -> str:
    """Return the first sentence of `text`: its summary, and Long-CLIP's short caption."""
    return join_sentences(split_sentences(text)[:1])


PROBES: dict[str, Callable[[str], str]] = {
    "keep": keep_caption,
    "move": move_summary,
    "remove": remove_summary,
    "first2": first_two,
    "swap2": swap_two,
    "first_only": first_only,
}
