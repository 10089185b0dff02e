"""Whether an encoder fits a slot of a pipeline: pair, vocabulary, width, layers, plain weights.

Each check raises ValueError with one sentence that names both sides.
"""

import json
from collections.abc import Mapping

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from debias_sd.counts import count_of
from debias_sd.encoder import text_tower
from debias_sd.encoder_weights import FLOATS
from debias_sd.pipelines.families import Slot


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
