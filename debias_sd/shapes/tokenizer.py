"""The world's tokenizer: a real `CLIPTokenizer` with a small CLIP BPE.

CLIP's scheme exactly (lower case, byte alphabet, `</w>` at word ends, end-of-text as padding) with merges that make
every word of `caption.words()` one token. The 512 byte tokens let it accept any other text, spelled out; such words
were never trained, and `TextEncoder.unknown_words` names them. End-of-text is the highest id, so that pooling at the
end token is right by either of transformers' two rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from debias_sd.shapes.caption import words

if TYPE_CHECKING:
    from transformers import CLIPTokenizer


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in GPT-2's and CLIP's vocabularies, in CLIP's order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index in range(len(hidden))]


def _merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def bpe_merges(vocabulary: list[str]) -> list[tuple[str, str]]:
    """Merges, in order, under which each word of `vocabulary` becomes one token.

    A word keeps its merges when later words add theirs, since BPE always takes the earliest merge that applies.
    """
    merges: list[tuple[str, str]] = []
    for word in vocabulary:
        pieces = [*word[:-1], word[-1] + "</w>"]
        for pair in merges:
            pieces = _merge(pieces, pair)
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = _merge(pieces, merges[-1])
    return merges


def build_tokenizer(model_max_length: int = 77) -> CLIPTokenizer:
    """Build the tokenizer; `model_max_length` is the window that diffusers pads to (77 or 248)."""
    from transformers import CLIPTokenizer

    merges = bpe_merges(words())
    alphabet = byte_alphabet()
    vocabulary = [*alphabet, *(char + "</w>" for char in alphabet)]
    vocabulary += list(dict.fromkeys("".join(pair) for pair in merges))
    vocabulary = list(dict.fromkeys(vocabulary)) + ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)}, merges=merges, model_max_length=model_max_length
    )
