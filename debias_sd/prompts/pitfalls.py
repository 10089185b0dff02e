"""Python warnings about what in a prompt does not do what its writer may expect."""

import warnings
from collections.abc import Sequence

from debias_sd.pipelines.families import Slot
from debias_sd.prompts.batch import Reader, Texts
from debias_sd.prompts.learnt import LearntTokens
from debias_sd.prompts.markup import parse_a1111


def warn_of_tags(tags: Sequence[str], sides: Sequence[Texts], *, weighting: str | None) -> None:
    """Warn of `<lora:name:1>`: of `tags`, which weighting has left out, or of those that are read as text."""
    if weighting is None:
        typed = {text for side in sides for texts in side for text in texts if "<" in text}
        found = tuple(dict.fromkeys(tag for text in typed for tag in parse_a1111(text).tags))
        what = "is read as text"
    else:
        found, what = tags, "is left out"
    if found:
        warnings.warn(
            f"{', '.join(found)} in a prompt loads nothing and {what}; load it with pipe.load_lora_weights() and give "
            "lora_scale.",
            stacklevel=4,
        )


def warn_of_half_learnt(slots: Sequence[Slot], readers: Sequence[Reader], sides: Sequence[Texts]) -> None:
    """Warn of textual inversions in a prompt that another of the CLIP encoders does not know."""
    learnt = [LearntTokens(reader.tokenizer) for reader in readers if reader.positions is not None]
    for index, (slot, own) in enumerate(zip(slots, learnt, strict=True)):
        texts = {text for side in sides for text in side[index]}
        typed = {one.name for other in learnt if other.names for text in texts for one in other.find(text, whole=True)}
        for token in sorted(token for token in typed if token.lower() not in {name.lower() for name in own.names}):
            warnings.warn(
                f"{token} is a textual inversion that {slot.encoder} does not know and reads letter by letter; load "
                f"its vectors for it with pipe.load_textual_inversion(..., text_encoder=pipe.{slot.encoder}, "
                f"tokenizer=pipe.{slot.tokenizer}).",
                stacklevel=4,
            )
