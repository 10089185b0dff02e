"""A dual encoder (CLIP, SigLIP) as a judge: is the picture closer to the sentence than to it with a detail changed?

A plain similarity is high for any picture with the right subject. Here the sentence competes with itself: s is its
similarity to the picture on the scale that the model was trained with, s_k those of its changes (`details`), and

    score = 1 / (1 + mean over k of exp(s_k - s)),

the probability of the sentence among its changes where all of these together weigh as much as it does: 0.5 says that
the model cannot tell, however many changes there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from debias_sd.encoder_folder import read_known_words
from debias_sd.measure.changes import CHANGES, changes_of
from debias_sd.measure.embedding import length_batches
from debias_sd.measure.judges import Thresholds, Verdict, unjudged
from debias_sd.measure.towers import Towers, describe_towers
from debias_sd.tokens import unknown_words

NO_DETAIL = "no word of it is known to name a detail"
BEHIND_WINDOW = "its details come after the tokens that the model reads"
UNKNOWN_WORDS = "the model was never trained on a word of it"
_ROWS = 64  # texts at a time
_KEPT = 32_768  # features of texts: about 100 MB of 768 numbers each


@dataclasses.dataclass
class ClipJudge:
    """Both towers of a folder; the last features of texts are kept, pictures of one prompt come in many."""

    towers: Towers
    source: str
    thresholds: Thresholds = Thresholds()
    changes: int = CHANGES
    known_words: frozenset[str] | None = dataclasses.field(init=False, repr=False)
    _features: dict[tuple[int, ...], Tensor] = dataclasses.field(init=False, repr=False, default_factory=dict)

    meaning = "probability of the sentence against it with a detail changed; 0.5: the model cannot tell"

    def __post_init__(self) -> None:
        self.known_words = read_known_words(self.towers.folder)

    @property
    def name(self) -> str:
        return f"clip:{self.source}"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Score every sentence; unjudged is one without a detail word, or whose details the model cannot read."""
        asked = {sentence: self._rows_of(sentence) for sentence in dict.fromkeys(sentences)}
        self._read([row for rows in asked.values() if not isinstance(rows, str) for row in rows])
        seen = self._image_features(image).double()
        verdicts = {
            sentence: unjudged(sentence, rows) if isinstance(rows, str) else self._verdict(sentence, rows, seen)
            for sentence, rows in asked.items()
        }
        return [verdicts[sentence] for sentence in sentences]

    def _rows_of(self, sentence: str) -> list[tuple[int, ...]] | str:
        """The ids of the sentence and of its changes, or why it cannot be judged."""
        if unknown_words(sentence, self.known_words):
            return UNKNOWN_WORDS
        changes = changes_of(sentence, limit=self.changes, knows=lambda word: not unknown_words(word, self.known_words))
        if not changes:
            return NO_DETAIL
        first, *others = map(tuple, self.towers.ids_of([sentence, *(change.sentence for change in changes)])[0])
        others = [row for row in others if row != first]
        return [first, *others] if others else BEHIND_WINDOW

    def _verdict(self, sentence: str, rows: list[tuple[int, ...]], seen: Tensor) -> Verdict:
        texts = torch.stack([self._features[row] for row in rows]).double()
        similarities = self._scale() * texts @ seen
        score = float(1 / (1 + (similarities[1:] - similarities[0]).exp().mean()))
        if not np.isfinite(score):
            raise ValueError(
                f"judge {self.name} gives NaN for {sentence!r}; its weights or the picture's features are not finite, "
                "take another model."
            )
        return Verdict(sentence, score, self.thresholds.mark(score))

    def _image_features(self, image: Image.Image) -> Tensor:
        preprocessing = self.towers.preprocessing
        pixels = preprocessing.normalise([preprocessing.square(image.convert("RGB"))])
        return _normalised(self.towers.image_features(pixels))[0]

    def _read(self, rows: list[tuple[int, ...]]) -> None:
        """Take in the features of rows of ids, in batches of one length; past _KEPT the oldest ones go."""
        asked = dict.fromkeys(rows)
        missing = [row for row in asked if row not in self._features]
        for places in length_batches([len(row) for row in missing], rows=_ROWS):
            batch = [missing[place] for place in places]
            found = _normalised(self.towers.text_features(torch.tensor(batch, dtype=torch.long)))
            self._features.update(zip(batch, found, strict=True))
        if (over := len(self._features) - _KEPT) > 0:  # a judge lives as long as the app that it judges for
            for row in [row for row in self._features if row not in asked][:over]:
                del self._features[row]

    def _scale(self) -> float:
        return float(self.towers.model.logit_scale.detach().float().exp())

    def describe(self) -> dict[str, Any]:
        about = {"meaning": self.meaning, "source": self.source, "changes": self.changes}
        return describe_towers(self.towers) | about | {"thresholds": dataclasses.asdict(self.thresholds)}


def _normalised(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features.float(), dim=-1)
