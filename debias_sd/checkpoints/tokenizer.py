"""The tokenizer of a converted encoder: its own files, another folder's, or CLIP's vocabulary out of open_clip's wheel.

The pad token belongs to what the encoder is for. Stable Diffusion 1.x, the first encoder of XL and 3 and FLUX pad with
the end token, 49407; Stable Diffusion 2.x, the second encoder of XL and 3, and CLIP's own retrieval pad with id 0, "!".
Under the causal mask only the states after the end token differ, and the UNet attends to those. Where "!" is the pad,
stock transformers would read every "!" of a text as one; so special tokens in texts are spelled out, by themselves.
"""

import functools
import gzip
from pathlib import Path

from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from debias_sd.checkpoints.architecture import open_clip_folder
from debias_sd.counts import count_of
from debias_sd.tokens import spell_out_special_tokens

VOCABULARY = 49408
TARGETS = {"sd1": None, "sd2": 0, "sdxl": None, "sdxl-2": 0, "sd3": None, "flux": None, "retrieval": 0}
"""Pad id by target; None is the end token."""
_MERGES = 49152 - 256 - 2  # what OpenAI's tokenizer takes of the file


def resolve_tokenizer(
    folder: Path | None, *, vocabulary: int, positions: int, target: str | None
) -> tuple[PreTrainedTokenizerBase, str]:
    """Return the tokenizer, reading `positions` tokens and padding as `target` does, and where it comes from.

    `folder` None means CLIP's own vocabulary. With `target` None the tokenizer keeps its pad token. Raises ValueError
    for a tokenizer of another vocabulary, and when there is none.
    """
    if folder is not None:
        origin = f"tokenizer files of {folder.name}"
        try:
            tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=positions)
        except Exception as error:  # the Rust library raises bare Exception
            raise ValueError(f"the tokenizer files in {folder} are damaged; copy them again.") from error
    elif vocabulary == VOCABULARY:
        tokenizer, origin = clip_tokenizer(), "CLIP's vocabulary, out of open_clip_torch"
    else:
        raise ValueError(
            f"the encoder knows {vocabulary} tokens, CLIP's own vocabulary has {VOCABULARY}, and no tokenizer files "
            "lie beside it; give the folder of its tokenizer by --tokenizer."
        )
    if len(tokenizer) != vocabulary:
        raise ValueError(
            f"the tokenizer ({origin}) has {count_of(len(tokenizer), 'token')} and the encoder {vocabulary:,}; give "
            "the encoder's own by --tokenizer."
        )
    tokenizer.model_max_length = positions
    if target is not None:
        pad = TARGETS[target]
        tokenizer.pad_token = tokenizer.eos_token if pad is None else tokenizer.convert_ids_to_tokens(pad)
    spell_out_special_tokens(tokenizer)
    return tokenizer, origin


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds the files of a tokenizer; without them transformers gives one of two tokens, silently."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))


def clip_tokenizer() -> CLIPTokenizer:
    """Build CLIP's tokenizer from the BPE file in open_clip's wheel; ValueError when that is not installed."""
    vocabulary, merges = _read_bpe(open_clip_folder("a tokenizer for this checkpoint") / "bpe_simple_vocab_16e6.txt.gz")
    return CLIPTokenizer(vocab=dict(vocabulary), merges=list(merges))


@functools.cache
def _read_bpe(path: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    merges = [tuple(line.split()) for line in lines[1 : _MERGES + 1]]
    letters = _letters()
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge) for merge in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: index for index, token in enumerate(tokens)}, merges


def _letters() -> list[str]:
    """The 256 bytes as characters, in the order of CLIP's ids: printable ones first, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
