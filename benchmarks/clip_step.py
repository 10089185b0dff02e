"""One training step of a CLIP of ViT-B/16's size in several ways that give the same loss and the same gradients.

* ours: the trainer's towers and loss, as `python -m train_encoder` calls them;
* frozen: the same with the image features given, as `freeze_image_tower` has them: the text tower alone;
* padded: the same maths with every caption padded to 248 and a text pass for each kind, as Long-CLIP's script does;
* open_clip: open_clip's own model at 248 positions and its `ClipLoss`.

A step here is forward, loss and backward; the optimizer's update is the same for all and left out. Weights are random,
texts are real. The floor is arithmetic: the multiplications of the image tower and of the text tokens that are read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from debias_sd.checkpoints.keys import clip_to_openai, text_to_openai
from debias_sd.losses import principal_components, two_caption_loss
from debias_sd.preprocessing import Preprocessing
from debias_sd.sentences import join_sentences, split_sentences
from train_encoder.data.batches import ClipTexts, Collator
from train_encoder.model.towers import ClipTowers
from train_encoder.settings import TrainConfig, make_config

POSITIONS = 248
PIXELS = Preprocessing(224, 224, 3, (0.5,) * 3, (0.25,) * 3, "random pictures of any size")
MEAN_TOKENS = 180  # of ShareGPT4V's captions


@dataclass(frozen=True)
class Size:
    """What decides the size of the model; the defaults are ViT-B/16's."""

    text_width: int = 512
    vision_width: int = 768
    text_layers: int = 12
    vision_layers: int = 12
    image: int = 224
    patch: int = 16
    projection: int = 512

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


class Step(NamedTuple):
    """One way: its module, and what computes its loss from the batch."""

    module: nn.Module
    loss: Callable[[], Tensor]


def read_texts(path: Path, tokenizer: CLIPTokenizer, *, count: int) -> list[str]:
    """The first `count` captions of a JSON lines file, cut at sentence ends so that their mean comes nearest to 180.

    Raises ValueError when the file is missing or holds fewer captions.
    """
    if not path.is_file():
        raise ValueError(f"file {path} does not exist; name a JSON lines file with a caption on each line by --texts.")
    texts = [json.loads(line)["caption"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(texts) < count:
        raise ValueError(f"file {path} holds {len(texts)} captions, a batch needs {count}; lower --batch.")
    # Every way to end each caption: how many sentences, how many tokens.
    ends = []
    for text in texts[:count]:
        sentences = split_sentences(text)
        cuts = [join_sentences(sentences[:n]) for n in range(1, len(sentences) + 1)]
        ends.append([(len(tokenizer(cut, verbose=False)["input_ids"]), cut) for cut in cuts])

    def cut_at(limit: int) -> list[tuple[int, str]]:
        return [max([end for end in one if end[0] <= limit] or one[:1]) for one in ends]

    def distance(limit: int) -> float:
        return abs(sum(length for length, _ in cut_at(limit)) / count - MEAN_TOKENS)

    return [text for _, text in cut_at(min(range(MEAN_TOKENS, POSITIONS + 1), key=distance))]


def make_model(size: Size, tokenizer: CLIPTokenizer, *, attention: str) -> CLIPModel:
    """A random CLIP at 248 positions, with ids of the tokenizer's end token, pads 0, QuickGELU as in OpenAI's."""
    torch.manual_seed(0)
    text = {"hidden_size": size.text_width, "intermediate_size": 4 * size.text_width}
    text |= {"num_hidden_layers": size.text_layers, "num_attention_heads": size.text_width // 64}
    text |= {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, "hidden_act": "quick_gelu"}
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    vision = {"hidden_size": size.vision_width, "intermediate_size": 4 * size.vision_width}
    vision |= {"num_hidden_layers": size.vision_layers, "num_attention_heads": size.vision_width // 64}
    vision |= {"image_size": size.image, "patch_size": size.patch, "hidden_act": "quick_gelu"}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=size.projection))
    model.set_attn_implementation(attention)
    # CLIP's initialisation maps all texts to nearly one vector, and all images: no loss is like that.
    nn.init.normal_(model.text_model.embeddings.token_embedding.weight, std=0.5)
    nn.init.normal_(model.vision_model.embeddings.position_embedding.weight, std=0.5)
    return model.train()


def make_config_of_step(text_pass: str = "packed") -> TrainConfig:
    return make_config(
        {"output_dir": "none", "pretrained_model_name_or_path": "none", "recipe": "debias", "text_pass": text_pass}
    )


def make_batch(texts: list[str], tokenizer: CLIPTokenizer, size: Size) -> dict[str, Tensor]:
    """The trainer's own batch of `texts` with random pictures."""
    rng = random.Random(0)
    side = (size.image, size.image, 3)
    generator = torch.Generator().manual_seed(0)
    items = [
        {
            "number": rng.randrange(10**6),
            "text": text,
            "image": torch.randint(0, 256, side, generator=generator).numpy(),
        }
        for text in texts
    ]
    collate = Collator(ClipTexts(tokenizer, POSITIONS, 0), make_config_of_step(), PIXELS)
    return {name: value for name, value in collate(items).items() if isinstance(value, Tensor)}


def to_full_length(ids: Tensor) -> Tensor:
    return F.pad(ids, (0, POSITIONS - ids.shape[1]), value=0)


def our_step(model: CLIPModel, batch: dict[str, Tensor], *, text_pass: str = "packed") -> Step:
    config = make_config_of_step(text_pass)
    towers = ClipTowers(model, config)

    def loss() -> Tensor:
        out = towers(batch)
        return two_caption_loss(out["image"], out["text"], out["short"], out["logit_scale"]).total

    return Step(towers, loss)


def frozen_step(model: CLIPModel, batch: dict[str, Tensor]) -> Step:
    """The image tower frozen and its features computed before."""
    with torch.no_grad():
        vision = model.vision_model(pixel_values=batch["pixel_values"])
        features = model.visual_projection(vision.pooler_output)
    for part in (model.vision_model, model.visual_projection):
        part.requires_grad_(False)
    given = {name: value for name, value in batch.items() if name != "pixel_values"} | {"image_features": features}
    return our_step(model, given)


def padded_step(model: CLIPModel, batch: dict[str, Tensor]) -> Step:
    long, short = (to_full_length(batch[name]) for name in ("input_ids", "short_ids"))

    def loss() -> Tensor:
        image = model.visual_projection(model.vision_model(pixel_values=batch["pixel_values"]).pooler_output)
        features = [model.text_projection(model.text_model(input_ids=ids).pooler_output) for ids in (long, short)]
        return two_caption_loss(image, *features, model.logit_scale).total

    return Step(model, loss)


def open_clip_step(model: CLIPModel, batch: dict[str, Tensor], size: Size) -> Step:
    """open_clip's CLIP with the weights of `model`; its loss for each caption, as open_clip's users add them."""
    import open_clip
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(
        layers=size.vision_layers, width=size.vision_width, patch_size=size.patch, image_size=size.image
    )
    tokens = model.config.text_config.vocab_size
    text = CLIPTextCfg(
        context_length=POSITIONS,
        vocab_size=tokens,
        width=size.text_width,
        heads=size.text_width // 64,
        layers=size.text_layers,
    )
    other = CLIP(size.projection, vision, text, quick_gelu=True)
    other.load_state_dict(clip_to_openai(model.state_dict()), strict=False)
    long, short = (to_full_length(batch[name]) for name in ("input_ids", "short_ids"))
    clip_loss, weight = open_clip.ClipLoss(), make_config_of_step().short_weight

    def loss() -> Tensor:
        image = other.encode_image(batch["pixel_values"], normalize=True)
        long_features, short_features = (other.encode_text(ids, normalize=True) for ids in (long, short))
        scale = other.logit_scale.exp()
        short_loss = clip_loss(principal_components(image).to(short_features), short_features, scale)
        return weight * short_loss + (1 - weight) * clip_loss(image, long_features, scale)

    return Step(other.to(batch["pixel_values"]).train(), loss)


def make_step(name: str, model: CLIPModel, batch: dict[str, Tensor], size: Size) -> Step:
    """The step of that name, on a model of its own."""
    import copy

    model = copy.deepcopy(model)
    if name == "open_clip":
        return open_clip_step(model, batch, size)
    makers = {"ours": our_step, "frozen": frozen_step, "padded": padded_step}
    return makers[name](model, batch)


def gradients_of(step: Step) -> dict[str, Tensor]:
    """The gradients of a step in OpenAI's naming, which all ways share."""
    step.module.zero_grad(set_to_none=True)
    step.loss().backward()
    module = step.module.clip if isinstance(step.module, ClipTowers) else step.module
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    if not isinstance(module, CLIPModel):
        return found
    return clip_to_openai(found) if "visual_projection.weight" in found else text_to_openai(found)


class Operations(NamedTuple):
    """Multiplications of one forward pass in each part; a step makes about three times as many."""

    image: float
    text: float

    @property
    def whole(self) -> float:
        return self.image + self.text


def tower_operations(lengths: list[int], seen: list[float], *, width: int, layers: int) -> float:
    """Of sequences with `lengths` tokens, each of which attends to `seen` keys in the mean: per token and layer 12 w^2
    in the linear maps and 2 w for every key."""
    tokens = zip(lengths, seen, strict=True)
    return float(sum(length * layers * (12 * width**2 + 2 * width * keys) for length, keys in tokens))


def count_operations(batch: dict[str, Tensor], size: Size, *, end_id: int) -> dict[str, Operations]:
    """Of `padded` (248 tokens twice, each attending to all) and of the floor (what is read, and the prefix once)."""
    pairs = len(batch["input_ids"])
    side = size.patches + 1
    image = tower_operations([side] * pairs, [side] * pairs, width=size.vision_width, layers=size.vision_layers)
    image += pairs * size.patches * 3 * size.patch**2 * size.vision_width + pairs * size.vision_width * size.projection
    options = {"width": size.text_width, "layers": size.text_layers}
    last = 2 * pairs * size.text_width * size.projection
    padded = tower_operations([POSITIONS] * 2 * pairs, [POSITIONS] * 2 * pairs, **options) + last
    own, seen, longest = [], [], 1
    for ids in (batch["input_ids"], batch["short_ids"]):
        ends = (ids == end_id).int().argmax(dim=1)
        fronts = (ids[:, 1:] == 0).int().cumprod(dim=1).sum(dim=1).minimum(ends - 1)
        longest = max(longest, int(fronts.max()) + 1)
        for end, front in zip(ends.tolist(), fronts.tolist(), strict=True):
            own.append(end - front)
            seen.append((front + 2 + end + 1) / 2)  # from the first own token to the end token, under the causal mask
    floor = tower_operations([*own, longest], [*seen, (longest + 1) / 2], **options) + last
    return {"padded": Operations(image, padded), "floor": Operations(image, floor)}
