"""Tiny SigLIPs of 64 positions as `save_pretrained` writes them; their tokenizers behave as the two real ones do."""

import importlib.util
import json
import math
import re
import string
from pathlib import Path

import pytest
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import GemmaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, SiglipConfig, SiglipModel

LETTERS = string.ascii_lowercase + string.digits
WORDS = ("red", "star", "number", "small", "box", "lies", "there", "sky", "blue", "it", "is", "the", "a")
HAS_SENTENCEPIECE = importlib.util.find_spec("sentencepiece") is not None
# SigLIP's tokenizer as a stand-in and, where its package is installed, as transformers' own class; SigLIP 2's own.
OWN = pytest.param("own", marks=pytest.mark.skipif(not HAS_SENTENCEPIECE, reason="sentencepiece is not installed"))
STYLES = ("siglip", OWN, "siglip2")
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
CONTEXT, STRETCHED = 64, 196


def siglip_tokenizer() -> PreTrainedTokenizerBase:
    """As SigLIP's: a unigram vocabulary, `</s>` (1) as end token and as pad, lower case, punctuation dropped."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(letter, -4.0) for letter in LETTERS] + [("▁" + word, -2.0) for word in WORDS]
    inner = Tokenizer(models.Unigram(pieces, unk_id=2))
    drop = normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")
    inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), drop, normalizers.Strip()])
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": CONTEXT}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def gemma_tokenizer() -> PreTrainedTokenizerBase:
    """As SigLIP 2's: Gemma's class with pad 0, end token 1, bytes to fall back on, and upper case as it comes."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", *LETTERS, *string.ascii_uppercase, *".,"]
    merges = [("r", "e"), ("re", "d"), ("s", "t"), ("t", "h"), ("th", "e"), ("red", "▁"), ("the", "▁"), ("a", "▁")]
    vocabulary = {name: place for place, name in enumerate([*names, *(left + right for left, right in merges)])}
    options = {"add_bos_token": False, "add_eos_token": True, "padding_side": "right", "model_max_length": CONTEXT}
    return GemmaTokenizer(vocab=vocabulary, merges=merges, **options)


def own_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """SigLIP's own class over a vocabulary that sentencepiece makes here, with its ids: pad 0 unused, `</s>` 1."""
    import sentencepiece
    from transformers import SiglipTokenizer

    (folder / "texts.txt").write_text("\n".join(["a red star sits on the small blue box", " ".join(LETTERS)] * 20))
    options = {"vocab_size": 80, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}
    files = {"input": str(folder / "texts.txt"), "model_prefix": str(folder / "made"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**files, **options)
    return SiglipTokenizer(str(folder / "made.model"))


def make_siglip(folder: Path, style: str, *, layers: int = 2, resample: int = 2) -> Path:
    """Write a `SiglipModel` folder of 64 positions for pictures of 32; temperature and bias as in the paper."""
    folder.mkdir(exist_ok=True)
    makers = {"siglip": siglip_tokenizer, "siglip2": gemma_tokenizer, "own": lambda: own_tokenizer(folder)}
    tokenizer = makers[style]()
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    tower = TOWER | {"num_hidden_layers": layers}
    text = tower | {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT} | ids
    torch.manual_seed(0)
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=tower | {"image_size": 32, "patch_size": 16}))
    with torch.no_grad():
        model.logit_scale.fill_(math.log(10))
        model.logit_bias.fill_(-10)
        model.text_model.embeddings.token_embedding.weight.normal_(std=0.5)
        model.text_model.embeddings.position_embedding.weight.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"height": 32, "width": 32}
    pictures = {"size": size, "resample": resample, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "SiglipImageProcessor"} | pictures)
    )
    return folder


def make_pictures(folder: Path, *, count: int = 12) -> str:
    """Wide pictures with captions of one to several sentences; returns the list's path."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        picture = Image.new("RGB", (48, 32), (20 * number, 90, 0))
        picture.paste((0, 20 * number, 200), (0, 0, 8, 32))  # at an edge that a centre square would lose
        picture.save(folder / f"{number}.png")
        text = f"A red star, number {number}. It is small. {'A box lies there. ' * (1 + number % 4)}The sky is blue."
        lines.append(json.dumps({"file_name": f"{number}.png", "text": text}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return str(folder / "metadata.jsonl")
