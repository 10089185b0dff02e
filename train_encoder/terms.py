"""The list of the loss's terms, with the setting that is each one's weight. A new term is its class and a line here.

Importing this loads no torch: settings are checked before anything heavy is.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from debias_sd.run_settings import setting

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from train_encoder.pair_terms import PairTerm


@dataclasses.dataclass(frozen=True)
class TermWeights:
    """The weights of the terms that look at one pair at a time; 0 leaves a term out."""

    grounding_weight: float = setting(0.0, "weight of dense supervision on the shapes world; 0: none", at_least=0)
    stay_close_weight: float = setting(
        0.0,
        "weight of feature distillation by window, from the initial checkpoint's hidden states; 0: none",
        at_least=0,
    )
    late_sentences_weight: float = setting(
        0.0,
        "the same by sentence after that window, each as the initial checkpoint reads it alone; 0: none",
        at_least=0,
    )

    def check(self) -> None:
        """Raise ValueError for a term that this run's checkpoint or data cannot have."""
        for name in ("stay_close_weight", "late_sentences_weight"):
            if getattr(self, name) and self.pretrained_model_name_or_path is None:
                raise ValueError(
                    f"{name} is set without an initial checkpoint to distil from; "
                    "set pretrained_model_name_or_path, or the weight to 0."
                )
        if self.late_sentences_weight and self.stretch_factor == 1:
            raise ValueError(
                "late_sentences_weight is set with stretch_factor 1, so no sentence begins after the initial "
                "checkpoint's window; set stretch_factor to 4, or the weight to 0."
            )
        if self.grounding_weight and self.freeze_image_tower:
            raise ValueError(
                "grounding_weight is set with freeze_image_tower, but the supervision trains the image tower; "
                "set the weight to 0."
            )
        if self.grounding_weight and self.train_data != "shapes":
            raise ValueError(
                f"grounding_weight is set for train_data {self.train_data}, but only shapes knows what is in a "
                "picture; set the weight to 0."
            )


WEIGHTS = tuple(field.name for field in dataclasses.fields(TermWeights))


def make_terms(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: TermWeights | Any
) -> tuple[PairTerm, ...]:
    """The terms whose weight is not 0, for the initial checkpoint `model`. Make them before it is stretched."""
    from train_encoder.pair_terms import Grounding, LateSentences, StayClose

    weights = {kind: getattr(config, f"{kind.name}_weight") for kind in (Grounding, StayClose, LateSentences)}
    teacher = None
    if any(kind.distils for kind, weight in weights.items() if weight):
        teacher = copy.deepcopy(model.text_model).eval().requires_grad_(False)
    terms = []
    for kind, weight in weights.items():
        if weight:
            terms.append(kind(teacher, tokenizer) if kind.distils else kind(model, seed=config.seed))
            terms[-1].weight = weight
    return tuple(terms)
