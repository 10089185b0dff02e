"""Tiny random models that answer questions about pictures, with processors of their own: no download."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertTokenizer,
    BlipConfig,
    BlipForQuestionAnswering,
    BlipImageProcessor,
    BlipProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

WORDS = (
    "does this image show a an the red green blue yellow small large star circle square triangle cross ring in top "
    "bottom middle left right center there is are yes no Yes No Answer or . , ? : \" ' USER ASSISTANT Question Does"
).split()
CHAT = (
    "{{ bos_token }}{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


QWEN_CHAT = CHAT.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>").replace("{{ bos_token }}", "")


def word_tokenizer(*pictures: str) -> PreTrainedTokenizerFast:
    """One token a word, those of `pictures` (`<image>`) from 4 on; unknown words are one token."""
    pictures = pictures or ("<image>",)
    special = ["<pad>", "<s>", "</s>", "<unk>", *pictures]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(pictures),
    )


def save_llava(folder: Path, *, seed: int = 0, chat: bool = True, dtype: torch.dtype = torch.float32) -> Path:
    """A random LLaVA that reads 28 x 28 pictures in four patches, with a chat template or without."""
    tokenizer = word_tokenizer()
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1)
    )
    model.to(dtype).save_pretrained(folder)
    size = {"height": 28, "width": 28}
    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=size),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT if chat else None,
    )
    processor.save_pretrained(folder)
    return folder


def save_qwen(folder: Path, *, seed: int = 0) -> Path:
    """A random Qwen2-VL, whose pictures are patches in one row and whose positions have three axes."""
    tokenizer = word_tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.3,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
    }
    patches = {"patch_size": 7, "temporal_patch_size": 2}
    vision = patches | {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    torch.manual_seed(seed)
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **dict(zip(names, range(4, 8), strict=True)))
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    options = patches | {"merge_size": 2, "size": {"shortest_edge": 28 * 28, "longest_edge": 4 * 28 * 28}}
    parts = Qwen2VLImageProcessor(**options), tokenizer, Qwen2VLVideoProcessor(**options)
    Qwen2VLProcessor(*parts, chat_template=QWEN_CHAT).save_pretrained(folder)
    return folder


def save_blip(folder: Path, *, seed: int = 0) -> Path:
    """A random BLIP for visual question answering, 32 x 32 pictures, a vocabulary of a few words."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", *dict.fromkeys(word.lower() for word in WORDS)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"))
    text = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "encoder_hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "sep_token_id": 3,
        "bos_token_id": 5,
        "eos_token_id": 3,
        "initializer_range": 0.3,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
        "initializer_range": 0.3,  # BLIP's own default is 1e-10: no picture would make a difference
    }
    torch.manual_seed(seed)
    model = BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=16))
    with torch.no_grad():  # of random answers hardly one would be yes or no
        for word in ("yes", "no", "[SEP]"):
            model.text_decoder.cls.predictions.bias[words.index(word)] += 4
    model.save_pretrained(folder)
    size = {"height": 32, "width": 32}
    BlipProcessor(BlipImageProcessor(size=size), tokenizer).save_pretrained(folder)
    return folder
