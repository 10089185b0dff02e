"""A prompt of any length as windows that an encoder can read, split at sentence ends where possible.

Each window holds up to `window - 2` tokens between a start and an end token: 75 of 77, 246 of 248. The windows' tokens,
joined, are exactly the tokens of the prompt. A prompt that fits is one window, as `pipe.encode_prompt` makes it.
"""

import re
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from debias_sd.captions import split_sentences

# How textual inversion names the second and later vectors of one learnt token: "<cat-toy>_1".
_LATER_VECTOR = re.compile(r".*_\d+")


def split_windows(tokenizer: PreTrainedTokenizerBase, prompt: str, *, window: int) -> list[list[int]]:
    """Return the prompt's token ids in windows, without start and end token; an empty prompt is one empty window.

    A window ends at the last sentence end that fits, else at the last word end, else where it is full. Start and end
    tokens typed in the prompt are spelled out. Raises ValueError when `window` has no room for a token.
    """
    if window < 3:
        raise ValueError(f"window is {window}, start, end and one token need 3; use 77 or 248.")
    # verbose=False: the tokenizer's warning about long texts is about what this function does.
    encoded = tokenizer(
        prompt, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True, verbose=False
    )
    ids, room = encoded["input_ids"], window - 2
    if len(ids) <= room:
        return [ids]
    sentences = _sentence_starts(prompt, [start for start, _ in encoded["offset_mapping"]])
    words = _word_starts(tokenizer, ids)
    windows, start = [], 0
    while len(ids) - start > room:
        end = start + room
        places = range(end, start, -1)
        cut = next((at for at in places if at in sentences), None) or next((at for at in places if at in words), end)
        windows.append(ids[start:cut])
        start = cut
    return [*windows, ids[start:]]


def pad_window(tokenizer: PreTrainedTokenizerBase, content: list[int], *, window: int) -> list[int]:
    """Return `window` ids: start token, `content`, end token, then the tokenizer's pad id."""
    ids = [tokenizer.bos_token_id, *content, tokenizer.eos_token_id]
    return ids + [tokenizer.pad_token_id] * (window - len(ids))


def _sentence_starts(prompt: str, offsets: list[int]) -> set[int]:
    """Return the indices of the tokens that start a sentence, for tokens that start at the characters `offsets`.

    Sentences come with their white space folded, so places are compared by the characters other than white space
    before them.
    """
    before = [0, *accumulate(not character.isspace() for character in prompt)]
    lengths = (sum(not character.isspace() for character in sentence) for sentence in split_sentences(prompt))
    starts = set(accumulate(lengths))
    return {
        index
        for index, offset in enumerate(offsets)
        if before[offset] in starts and (index == 0 or before[offsets[index - 1]] < before[offset])
    }


def _word_starts(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> set[int]:
    """Return the indices where a word starts; the vectors of one textual-inversion token count as one word."""
    added = tokenizer.get_added_vocab()
    later = {id_ for token, id_ in added.items() if _LATER_VECTOR.fullmatch(token)}
    whole = set(added.values())
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return {
        index
        for index in range(1, len(ids))
        if (tokens[index - 1].endswith("</w>") or ids[index - 1] in whole) and ids[index] not in later
    }
