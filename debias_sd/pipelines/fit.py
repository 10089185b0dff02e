"""Whether an encoder fits a slot of a pipeline, and how far it is from the one that it replaces.

Fit is pair, vocabulary, width, layers, plain weights; each check raises ValueError with one sentence that names both
sides. Distance matters because what a fine-tuned base learnt must not be thrown away unseen. It is relative, |given -
own| / |own|, over the matrices of the layers that both have and over the token embedding, whichever is larger; position
tables differ by design. 16 rows of each matrix stand for it: within a few hundredths of the distance itself, of 15 MB
in place of 500, and the base's own encoder need not stay in memory.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from debias_sd.encoder import TextEncoder, text_tower
from debias_sd.encoder_weights import FLOATS
from debias_sd.pipelines.families import Slot
from debias_sd.text import count_of

# Adam moves a weight by at most about the learning rate a step. Long-CLIP's training, 1e-6 over some 3,000 steps of a
# cosine, moves it by 0.0015 at most: 0.07 of CLIP-L's weights, whose size is about 0.02. The embedded encoders are 0.07
# from their base. Two CLIPs that were trained apart are 1.4 from each other, whatever their size.
FAR = 0.1
_ROWS = 16
_GROUPS = ("encoder.layers.", "embeddings.token_embedding.")
Sketch = dict[str, tuple[int, Tensor]]  # by name: how many rows the matrix has, and those that stand for it


def check_pair(slot: Slot, components: Mapping[str, object], *, name: str) -> None:
    """Raise ValueError unless the CLIP encoder and the tokenizer in `slot` of pipeline `name` belong together."""
    check_vocabulary(slot, components, name=name)
    reads = components[slot.tokenizer].model_max_length
    positions = text_tower(components[slot.encoder]).embeddings.position_embedding.num_embeddings
    if reads > 1_000_000:
        raise ValueError(
            f"the {slot.tokenizer} of {name} has no model_max_length, so it has no window; write "
            f'"model_max_length": {positions} into its tokenizer_config.json.'
        )
    if reads != positions:
        raise ValueError(
            f"the {slot.tokenizer} of {name} reads {reads} tokens and its {slot.encoder} {positions}; give both from "
            "one folder, or load with load_debias_pipeline(base, encoder), which swaps both."
        )


def check_vocabulary(slot: Slot, components: Mapping[str, object], *, name: str) -> None:
    """Raise ValueError unless the CLIP encoder in `slot` of pipeline `name` has a vector for each of its tokens."""
    tokens = len(components[slot.tokenizer])
    vectors = text_tower(components[slot.encoder]).embeddings.token_embedding.num_embeddings
    if tokens != vectors:  # without its files, transformers gives a tokenizer of two tokens
        raise ValueError(
            f"the {slot.tokenizer} of {name} has {tokens} tokens and its {slot.encoder} {vectors}; copy the whole "
            "tokenizer folder again, or give both from one folder."
        )


def check_width(slot: Slot, width: int, *, need: int) -> None:
    """Raise ValueError when an encoder `width` wide cannot fill `slot`, whose own is `need` wide."""
    if width != need:
        raise ValueError(
            f"the encoder is {width} wide and {slot.encoder} of this base is {need} wide, which its denoiser was made "
            "for; give an encoder made for this base (768, CLIP ViT-L/14: SD 1.x, FLUX, the first of SDXL and SD 3; "
            "1024, OpenCLIP ViT-H/14: SD 2.x; 1280, OpenCLIP ViT-bigG/14: the second of SDXL and SD 3)."
        )


def check_layers(slot: Slot, layers: int, *, need: int) -> None:
    """Raise ValueError when an encoder of `layers` cannot give what `slot` reads, whose own has `need`.

    One layer more than the slot's own is how a whole encoder comes where the slot's was saved without the last one,
    because its denoiser reads the states before it: OpenCLIP ViT-H/14 has 24 layers, that of Stable Diffusion 2.x 23.
    Then the last one is left out. A pooled vector only the last layer gives, so a slot that reads one needs as many.
    """
    if layers == need or (layers == need + 1 and slot.pooled is None):
        return
    raise ValueError(
        f"the encoder has {count_of(layers, 'layer')} and {slot.encoder} of this base {need}, so its states are not "
        "those that the denoiser was trained on; give an encoder made for this base."
    )


def why_not_plain(model: nn.Module) -> str | None:
    """Return what shows that the weights of `model` are quantised (bitsandbytes, torchao, quanto, GGUF), else None.

    Such weights are packed in tensors of another type, or keep their scales beside them, so they can neither be cast
    nor put into a structure of their own.
    """
    config = getattr(model, "config", None)
    if getattr(model, "hf_quantizer", None) is not None or getattr(config, "quantization_config", None) is not None:
        return "it has a quantization_config"
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if type(weight.data) is not Tensor:
            return f"{name} is a {type(weight.data).__name__}"
        if isinstance(weight, nn.Parameter) and weight.dtype not in FLOATS:
            return f"{name} is {weight.dtype}"
    return None


def check_plain(model: nn.Module, *, name: str) -> None:
    """Raise ValueError for quantised weights; `name` is what the fault calls the model."""
    why = why_not_plain(model)
    if why:
        raise ValueError(
            f"{name} is quantised ({why}), and swapping or lengthening it would need plain weights; give it in "
            "float16 or bfloat16 and leave the quantisation to the denoiser, which is far larger."
        )


def check_words(slot: Slot, tokenizer: PreTrainedTokenizerBase, *, own: PreTrainedTokenizerBase) -> None:
    """Raise ValueError unless every token of `own`, the slot's tokenizer, has the same id in `tokenizer`."""
    words, vocabulary = own.get_vocab(), tokenizer.get_vocab()
    if not words.items() <= vocabulary.items():
        token = min(words.items() - vocabulary.items(), key=lambda item: item[1])[0]
        if token in own.added_tokens_encoder and token not in vocabulary:
            raise ValueError(
                f"{slot.tokenizer} of this base has the added token {token!r}, which the encoder lacks; if it "
                "was learnt, swap the text encoder first and call load_textual_inversion() on the result, else give an "
                "encoder with the vocabulary of this base."
            )
        raise ValueError(
            f"the encoder's vocabulary is another one: {token!r} has id {words[token]} in {slot.tokenizer} of this "
            f"base and {vocabulary.get(token, 'none')} in the encoder's; give an encoder with the vocabulary of this "
            "base."
        )
    if not _cut_alike(own, tokenizer):
        raise ValueError(
            f"the encoder's tokenizer has the words of {slot.tokenizer} of this base and merges letters to them "
            "in another order, so it cuts texts into other tokens; copy the tokenizer files of its model again."
        )


def _cut_alike(*tokenizers: PreTrainedTokenizerBase) -> bool:
    """Say whether byte-pair tokenizers join the same pairs in the same order: the vocabulary alone does not say it."""
    models = [bytes(tokenizer.backend_tokenizer.model.__getstate__()) for tokenizer in tokenizers]
    return len(set(models)) == 1 or len({str(json.loads(model)["merges"]) for model in models}) == 1


def sketch(model: nn.Module) -> Sketch:
    """Return some rows of each matrix, in float32 on the CPU; none of a quantised or empty one."""
    found = {}
    for name, weight in text_tower(model).named_parameters():
        plain = type(weight.data) is Tensor and weight.dtype in FLOATS and not weight.is_meta
        if plain and weight.ndim == 2 and name.startswith(_GROUPS):
            found[name] = len(weight), _rows(weight.detach(), len(weight))
    return found


def _rows(weight: Tensor, count: int) -> Tensor:
    return weight[: count : max(1, count // _ROWS)].to("cpu", torch.float32, copy=True)


def distance(own: Sketch, model: nn.Module) -> float:
    """Return how far `model` is from the encoder of a sketch; 0 where they have no matrix of one shape in common."""
    given = dict(text_tower(model).named_parameters())
    largest = 0.0
    for group in _GROUPS:
        apart = size = 0.0
        for name, (count, rows) in own.items():
            other = given.get(name)
            if not name.startswith(group) or other is None or len(other) < count or other.shape[1] != rows.shape[1]:
                continue
            scale = count / len(rows)
            apart += scale * float((_rows(other.detach(), count) - rows).square().sum())
            size += scale * float(rows.square().sum())
        largest = max(largest, (apart / size) ** 0.5 if size else 0.0)
    return largest


def warn_of_replaced(slots: dict[Slot, tuple[Sketch, TextEncoder]], *, name: str, base: str | None) -> None:
    """Warn once of the slots of pipeline `name` whose own encoder is not what the given one was trained from.

    Args:
        slots: for each slot that is filled, its own encoder and the one in its place.
        base: the folder or hub id that the pipeline was loaded from.
    """
    found = {slot: distance(own, encoder.model) for slot, (own, encoder) in slots.items()}
    far = {slot: one for slot, one in found.items() if one > FAR and not _started_from(*slots[slot], base=base)}
    if not far:
        return
    apart = " and ".join(f"{slot.encoder} by {one:.2f}" for slot, one in far.items())
    keep = " and ".join(slot.encoder.removeprefix("text_") + "='stretched'" for slot in far)
    warnings.warn(
        f"the encoder given to {name} was not trained from the base's own, which it replaces: their weights differ "
        f"({apart} of their size; training moves them by less than {FAR}), so what this base's own was fine-tuned "
        f"for is lost; {keep} keeps it, lengthened without training, or train an encoder from it.",
        stacklevel=4,
    )


def _started_from(own: Sketch, encoder: TextEncoder, *, base: str | None) -> bool:
    """Whether the encoder's provenance names a start that is this base, or lies on disk and is near its own encoder."""
    training = encoder.provenance.get("config")
    start = training.get("pretrained_model_name_or_path") if isinstance(training, dict) else None
    if not isinstance(start, str):
        return False
    if start == base:
        return True
    folder = Path(start).expanduser()
    folder = folder / "text_encoder" if (folder / "model_index.json").is_file() else folder
    try:
        return folder.is_dir() and distance(own, TextEncoder.load(folder).model) <= FAR
    except ValueError:  # it is not whole any more
        return False
