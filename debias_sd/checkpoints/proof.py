"""A converted folder against the checkpoint that it was made of: the same texts through both.

Texts of 9, 169 and 248 tokens, because a wrong second half of the position table passes on short ones: with only the
first of Long-CLIP's tables 9 tokens agree to 1e-7 and 150 are off by 1.8.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import CLIPModel, CLIPTextModel, CLIPTextModelWithProjection, PreTrainedTokenizerBase

from debias_sd.checkpoints.architecture import Architecture
from debias_sd.checkpoints.reference import image_features, text_states
from debias_sd.checkpoints.weights import Weights

LENGTHS = (9, 169, 248)
LIMIT = 1e-3  # relative to the largest value; float32 rounding stays below 1e-5
TEXT = (
    "A wide view of a quiet harbour at dawn: red boats lie at a stone pier, two gulls sit on a mast, seven narrow "
    "houses stand behind, the third has a green door. An old man in a blue jacket carries a basket of silver fish. "
)
CLASSES = {one.__name__: one for one in (CLIPModel, CLIPTextModel, CLIPTextModelWithProjection)}


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
        pairs = {
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
