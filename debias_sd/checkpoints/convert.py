"""Someone else's CLIP checkpoint -> an encoder folder that stock transformers and diffusers load, with its proof.

    convert_checkpoint("longclip-L.pt", "long-clip-l")

Read, find the text tower, settle what the file does not say, write, compare: the folder is put in its place only when
it computes what the checkpoint computes.

The tokenizer is the source's own, another folder's, or CLIP's vocabulary out of open_clip's wheel. The pad token
belongs to what the encoder is for. Stable Diffusion 1.x, the first encoder of XL and 3 and FLUX pad with the end token,
49407; Stable Diffusion 2.x, the second encoder of XL and 3, and CLIP's own retrieval pad with id 0, "!". Under the
causal mask only the states after the end token differ, and the UNet attends to those. Where "!" is the pad, stock
transformers would read every "!" of a text as one; so special tokens in texts are spelled out, by themselves.

A folder is compared by the same texts through it and its checkpoint, of 9, 169 and 248 tokens, because a wrong second
half of the position table passes on short ones: with only the first of Long-CLIP's tables 9 tokens agree to 1e-7 and
150 are off by 1.8.
"""

import functools
import gzip
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPModel, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, PreTrainedTokenizerBase

from debias_sd.checkpoints.architecture import Architecture, open_clip_folder, resolve_architecture
from debias_sd.checkpoints.layouts import BIAS, TRAINED, Tower, find_tower
from debias_sd.checkpoints.reading import Source, read_source
from debias_sd.checkpoints.weights import (
    DTYPES,
    SD2_LAYERS,
    Weights,
    count_blocks,
    image_features,
    resolve_weights,
    text_states,
)
from debias_sd.checkpoints.writing import Conversion, class_of, left_out_of, write_model, write_story
from debias_sd.encoder_folder import has_tokenizer, replace_folder, tokenizer_folder
from debias_sd.shapes.tokenizer import byte_alphabet
from debias_sd.text import count_of
from debias_sd.tokens import spell_out_special_tokens

VOCABULARY = 49408
TARGETS = {"sd1": None, "sd2": 0, "sdxl": None, "sdxl-2": 0, "sd3": None, "flux": None, "retrieval": 0}
"""Pad id by target; None is the end token."""
_BY_WIDTH = {768: "sd1", 1024: "sd2", 1280: "sdxl-2"}  # where Stable Diffusion uses a tower of this width
_MERGES = 49152 - 256 - 2  # what OpenAI's tokenizer takes of the file
LENGTHS = (9, 169, 248)
LIMIT = 1e-3  # relative to the largest value; float32 rounding stays below 1e-5
TEXT = (
    "A wide view of a quiet harbour at dawn: red boats lie at a stone pier, two gulls sit on a mast, seven narrow "
    "houses stand behind, the third has a green door. An old man in a blue jacket carries a basket of silver fish. "
)
CLASSES = {one.__name__: one for one in (CLIPModel, CLIPTextModel, CLIPTextModelWithProjection)}


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
            f"the encoder has {vocabulary} tokens but CLIP's own vocabulary has {VOCABULARY}, and no tokenizer files "
            "lie beside it; give the folder of its tokenizer with --tokenizer."
        )
    if len(tokenizer) != vocabulary:
        raise ValueError(
            f"the tokenizer ({origin}) has {count_of(len(tokenizer), 'token')} and the encoder {vocabulary:,}; give "
            "the encoder's own with --tokenizer."
        )
    tokenizer.model_max_length = positions
    if target is not None:
        pad = TARGETS[target]
        tokenizer.pad_token = tokenizer.eos_token if pad is None else tokenizer.convert_ids_to_tokens(pad)
    spell_out_special_tokens(tokenizer)
    return tokenizer, origin


def clip_tokenizer() -> CLIPTokenizer:
    """Build CLIP's tokenizer from the BPE file in open_clip's wheel; ValueError when that is not installed."""
    vocabulary, merges = _read_bpe(open_clip_folder("a tokenizer for this checkpoint") / "bpe_simple_vocab_16e6.txt.gz")
    return CLIPTokenizer(vocab=dict(vocabulary), merges=list(merges))


@functools.cache
def _read_bpe(path: Path) -> tuple[dict[str, int], list[Any]]:
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    merges = [tuple(line.split()) for line in lines[1 : _MERGES + 1]]
    letters = byte_alphabet()
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge) for merge in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: index for index, token in enumerate(tokens)}, merges


@torch.no_grad()
def prove(
    folder: Path, weights: Weights, known: Architecture, tokenizer: PreTrainedTokenizerBase, *, model_class: str
) -> dict[str, float]:
    """Return the largest differences between `folder` and the checkpoint, by what was compared, in float32.

    Raises ValueError when one is above `LIMIT` of the largest value compared.
    """
    model = CLASSES[model_class].from_pretrained(folder, dtype=torch.float32).eval()
    tower = model if model_class == "CLIPTextModel" else model.text_model
    differences: dict[str, float] = {}
    for length in dict.fromkeys(min(length, tokenizer.model_max_length) for length in LENGTHS):
        ids = text_ids(tokenizer, length)
        expected = text_states(
            weights.source, ids, heads=known.heads, activation=known.activation, epsilon=known.epsilon,
            end_id=tokenizer.eos_token_id, layers=weights.layers,
        )  # fmt: skip
        output = tower(ids, output_hidden_states=True)
        pairs: dict[str, tuple[Any, Any]] = {
            f"hidden states, {length} tokens": (output.last_hidden_state, expected.last),
            f"states before the last layer, {length} tokens": (output.hidden_states[-2], expected.penultimate),
            f"pooled, {length} tokens": (output.pooler_output, expected.pooled),
        }
        if model_class != "CLIPTextModel":
            pairs[f"features, {length} tokens"] = (model.text_projection(output.pooler_output), expected.features)
        differences |= {name: _difference(name, *pair) for name, pair in pairs.items()}
    if model_class == "CLIPModel":
        size = model.config.vision_config.image_size
        images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        expected_image = image_features(
            weights.image, images, heads=known.image_heads, activation=known.image_activation,
            epsilon=known.image_epsilon,
        )  # fmt: skip
        found = model.visual_projection(model.vision_model(images).pooler_output)
        differences["image features"] = _difference("image features", found, expected_image)
    return differences


def text_ids(tokenizer: PreTrainedTokenizerBase, length: int) -> Tensor:
    """Return [1, length] ids of a text that fills them: start token, words, end token."""
    text = TEXT * (length // 20 + 1)
    words = tokenizer(text, add_special_tokens=False, truncation=True, max_length=length - 2)["input_ids"]
    return torch.tensor([[tokenizer.bos_token_id, *words, tokenizer.eos_token_id]])


def _difference(name: str, found: Tensor, expected: Tensor) -> float:
    difference = (found - expected).abs().max().item()
    limit = LIMIT * max(1.0, expected.abs().max().item())
    if not difference <= limit:  # a NaN is above every limit
        raise ValueError(
            f"the converted encoder differs from its checkpoint by {difference:.2g} in {name}, more than {limit:.2g}; "
            "nothing was written, please report this checkpoint."
        )
    return difference


def convert_checkpoint(
    source: str | Path,
    target_folder: str | Path,
    *,
    part: int | None = None,
    target: str | None = None,
    positions: str = "trained",
    positions_needed: int | None = None,
    stretch: bool = False,
    activation: str | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    image_tower: bool = False,
    dtype: str | None = None,
    tokenizer: str | Path | None = None,
) -> Conversion:
    """Write the text tower of a checkpoint file, a folder or a hub id as the encoder folder `target_folder`.

    `part` chooses among several encoders in one file, from 1. `target` is what the encoder is for (sd1, sd2, sdxl,
    sdxl-2, sd3, flux, retrieval) and decides the pad token, for sd2 also the last layer. `positions` is "trained", both
    tables of a Long-CLIP merged, or "published", the first alone as DeBias-CLIP's official loader uses it.
    `positions_needed` refuses a shorter file, `stretch` makes 77 positions 248. `activation`, `heads` and
    `architecture` (a name of open_clip) say what a file does not. `image_tower` writes a whole `CLIPModel`. `dtype` is
    float32, float16 or bfloat16, by default the file's own. `tokenizer` is a folder.

    Raises ValueError with one sentence for every fault; nothing is written then, and an encoder folder that is there
    stays.
    """
    for noun, value, allowed in (("target", target, TARGETS), ("dtype", dtype, DTYPES)):
        if value is not None and value not in allowed:
            raise ValueError(f"unknown {noun} {value!r}; it must be one of {', '.join(allowed)}.")
    folder, origin = Path(target_folder).expanduser(), Path(source).expanduser().resolve()
    if folder.resolve() in (origin, *origin.parents):
        raise ValueError(f"output {folder} holds the checkpoint itself, which would be lost; give another folder.")
    read = read_source(source)
    tower = find_tower(read, part=part)
    known = resolve_architecture(
        read, tower, heads=heads, activation=activation, architecture=architecture, image_tower=image_tower
    )
    vocabulary, width = tower.text["token_embedding.weight"].shape
    files = _tokenizer_folder(read, tokenizer)
    # A whole OpenCLIP ViT-H keeps its last layer unless it is told that Stable Diffusion 2.x is to read it.
    usual = "retrieval" if count_blocks(tower.text, "") == SD2_LAYERS else _BY_WIDTH.get(width, "retrieval")
    use = target or tower.target or (None if files is not None else usual)
    weights = resolve_weights(
        read.name, tower, target=target or tower.target, positions=positions, positions_needed=positions_needed,
        stretch=stretch, image_tower=image_tower, dtype=dtype,
    )  # fmt: skip
    rows = len(weights.written["positional_embedding"])
    words, of_words = resolve_tokenizer(files, vocabulary=vocabulary, positions=rows, target=use)
    differences: dict[str, float] = {}
    result = Conversion(
        folder=folder, layout=tower.layout, model_class=class_of(weights), width=width,
        layers=weights.layers, heads=known.heads, positions=rows, tables=positions if TRAINED in tower.text else "one",
        activation=known.activation, dtype=str(weights.dtype).removeprefix("torch."), target=use,
        pad_id=words.pad_token_id, tokenizer=of_words, left_out=left_out_of(tower, weights),
        notes=known.notes + weights.notes + _notes(tower), differences=differences,
    )  # fmt: skip

    def write(folder: Path) -> None:
        write_model(folder, read, tower, weights, known, words)
        differences.update(prove(folder, weights, known, words, model_class=result.model_class))
        write_story(folder, read, result)

    replace_folder(result.folder, write)
    return result


def _notes(tower: Tower) -> tuple[str, ...]:
    if BIAS not in tower.left_out:
        return ()
    return (f"{BIAS} left out: it is added to the similarities of the sigmoid loss, no tower has it",)


def _tokenizer_folder(read: Source, tokenizer: str | Path | None) -> Path | None:
    """Return the folder with tokenizer files: the one asked for, the source's own, or its pipeline's; None without."""
    if tokenizer is not None:
        folder = Path(tokenizer).expanduser()
        if not has_tokenizer(folder):
            raise ValueError(f"{tokenizer} has no tokenizer files; give the folder that holds tokenizer.json.")
        return folder
    return None if read.folder is None else tokenizer_folder(read.folder)
