"""Text to padded token ids, front padding, and the words that a small vocabulary lacks.

Source of the front padding: DeBias-CLIP (arXiv 2602.22419): `[SOT, PAD x n_pre, text, EOT, PAD x (n_post - n_pre)]`.
The pad id belongs to the model: with a causal mask the pooled vector does not depend on the pads after EOT, every
padded hidden state does. SD 1.x pads with EOT (49407), SD 2.x, SDXL's second encoder and the training here with 0.
Worked number: 9 text tokens in 248 positions leave n_post = 248 - 9 - 2 = 237.

SigLIP's texts to token ids: `[text, EOS, PAD, PAD, ...]`, always of the tower's whole length.

Its text tower attends in both directions without a mask and is pooled at the last slot: every pad is read, and most
texts are pooled at one. So the pad and the length are part of the model, as in its training (big_vision, open_clip's
`HFTokenizer`): pads after the text up to the last position, in lower case, longer texts cut with their end token kept.
SigLIP's own tokenizer (`</s>` is both end token and pad) also drops punctuation; SigLIP 2's is Gemma's (pad 0, end 1),
which older folders load without its lower-casing.
"""

import copy
import re
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from debias_sd.text import count_of

CONTEXTS = (77, 248)
_MANY = 1000  # entries that only a vocabulary has
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, length: int, pad_id: int
) -> Int[Tensor, "batch length"]:
    """Return the ids of `texts`, int64: start token, text, end token, then `pad_id` up to `length`.

    Longer texts are cut so that the end token stays last. Special tokens typed in a text ("<|endoftext|>") are spelled
    out like any other word: as ids they would end the text there for the pooled vector.

    Raises ValueError when `length` has no room for a start and an end token.
    """
    if length < 2:
        raise ValueError(f"length is {length}, start and end token need at least 2; use the encoder's 77 or 248.")
    ids = torch.full((len(texts), length), pad_id, dtype=torch.long)
    if not texts:
        return ids
    rows = tokenizer(list(texts), truncation=True, max_length=length, split_special_tokens=True)["input_ids"]
    for row, target in zip(rows, ids, strict=True):
        target[: len(row)] = torch.tensor(row, dtype=torch.long)
    return ids


def check_text(text: str) -> None:
    """Raise ValueError for a lone surrogate, which a command line that is not UTF-8 leaves and no tokenizer reads."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the prompt holds characters that are not valid text; save or type it as UTF-8.")


def end_positions(ids: Int[Tensor, "batch length"], *, end_id: int) -> Int[Tensor, " batch"]:
    """Return the position of the first end token of each row.

    The first one, because a tokenizer may pad with the end token; counting pads by their id would also take a "!" of
    the text for a pad where the pad id is 0. Raises ValueError when a row has none.
    """
    is_end = ids == end_id
    if not is_end.any(dim=1).all():
        row = int((~is_end.any(dim=1)).nonzero()[0])
        raise ValueError(
            f"row {row} of the token ids has no end token {end_id}, each row needs one; make the ids with tokenize()."
        )
    return is_end.int().argmax(dim=1)


def copy_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer of its own around the same vocabulary, whose merges are shared: nothing changes them."""
    shared = [value for value in vars(tokenizer).values() if isinstance(value, list | dict) and len(value) > _MANY]
    return copy.deepcopy(tokenizer, {id(value): value for value in shared})


def spell_out_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let `tokenizer` spell out start and end tokens that a user types, by itself and after it is saved and loaded.

    Its attribute alone would be lost by `save_pretrained`, which writes the settings that it was made with. The start
    and end token around a text, and learnt tokens, stay what they are.
    """
    tokenizer.split_special_tokens = True
    tokenizer.init_kwargs["split_special_tokens"] = True


def front_pad(
    ids: Int[Tensor, "batch length"], counts: Int[Tensor, " batch"], *, pad_id: int, end_id: int
) -> Int[Tensor, "batch length"]:
    """Return `ids` with `counts` of the slots after the end token moved to directly after the start token.

    The moved slots hold `pad_id`; no token of the text is lost or reordered. Raises ValueError when a count is
    negative or above the slots after the end token, and when `pad_id` is the end token: pooling would find that pad.
    """
    if pad_id == end_id:
        raise ValueError(
            f"pad id {pad_id} is the end token, in front of a text it would be pooled in its place; front pad with 0."
        )
    n_post = ids.shape[1] - 1 - end_positions(ids, end_id=end_id)
    if bool(((counts < 0) | (counts > n_post)).any()):
        row = int(((counts < 0) | (counts > n_post)).nonzero()[0])
        raise ValueError(
            f"row {row} asks for {count_of(int(counts[row]), 'front pad')} but has room for {int(n_post[row])}, the "
            "slots after its end-of-text token; ask for fewer or shorten the text."
        )
    slots = torch.arange(ids.shape[1], device=ids.device)[None]
    is_front = (slots >= 1) & (slots <= counts[:, None])
    source = torch.where(slots == 0, slots, slots - counts[:, None]).clamp(min=0)
    return ids.gather(1, source).masked_fill(is_front, pad_id)


def unknown_words(prompt: str, known_words: Collection[str] | None) -> tuple[str, ...]:
    """Return the words of `prompt` outside `known_words`, each once, in order; "top-left" is known by its parts.

    `known_words` (lower case) are the words that an encoder of a small vocabulary was trained on; None reports none.
    """
    if known_words is None:
        return ()
    known = frozenset(known_words)
    words = dict.fromkeys(word.lower() for word in _WORD.findall(prompt))
    return tuple(
        word for word in words if word not in known and not all(part in known for part in re.split(r"['’-]", word))
    )


def siglip_rows(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, length: int | None) -> list[list[int]]:
    """Return the ids of each text with its end token, not padded; cut to `length` where one is given."""
    if not texts:
        return []
    options = {"truncation": False} if length is None else {"truncation": True, "max_length": length}
    return tokenizer([text.lower() for text in texts], padding=False, verbose=False, **options)["input_ids"]


def pad_rows(
    rows: Sequence[Sequence[int]], *, length: int, pad_id: int, fronts: Sequence[int] | None = None
) -> Int[Tensor, "batch length"]:
    """Return rows of ids as one tensor, int64, `pad_id` after each and, with `fronts`, so many pads in front of it.

    The front padding of DeBias-CLIP (arXiv 2602.22419) for texts without a start token:
    `[PAD x n_pre, text, EOS, PAD x (n_post - n_pre)]`; `length - len(row)` is n_post. Raises ValueError when a row and
    its pads in front do not fit.
    """
    ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    for number, row in enumerate(rows):
        front = fronts[number] if fronts is not None else 0
        if not 0 <= front <= length - len(row):
            raise ValueError(
                f"row {number} has {count_of(len(row), 'token')} and {count_of(front, 'front pad')}, more than "
                f"{length} positions hold; ask for fewer or shorten the text."
            )
        ids[number, front : front + len(row)] = torch.tensor(row, dtype=torch.long)
    return ids
