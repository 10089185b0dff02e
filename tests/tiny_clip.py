"""A whole tiny CLIP in a folder, as export wants one, and independent readings of what it wrote."""

from pathlib import Path

import torch
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel

from debias_sd.encoder import TextEncoder
from debias_sd.shapes.tokenizer import build_tokenizer
from debias_sd.tokens import tokenize
from tests.tiny import LONG_PROMPT, clip_tokenizer

TEXTS = ["a cat", LONG_PROMPT, LONG_PROMPT * 3, "", "two red circles, and 3 blue squares; it's late."]
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make_clip(
    folder: Path, *, length: int = 248, dtype: torch.dtype = torch.float32, clip_vocabulary: bool = False,
    added: int = 0, text: dict[str, object] | None = None, vision: dict[str, object] | None = None,
) -> Path:  # fmt: skip
    """Write a `CLIPModel` folder with heads of 64 and MLPs four times as wide, as L/14 has; `added` tokens last."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer(length) if clip_vocabulary else build_tokenizer(length)
    tokenizer.add_tokens([f"<new-{index}>" for index in range(added)])
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    tower = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1, "projection_dim": 32}
    own = {"num_hidden_layers": 2, "max_position_embeddings": length, "vocab_size": len(tokenizer)} | ids
    size = {"num_hidden_layers": 3, "image_size": 32, "patch_size": 16}
    config = CLIPConfig(
        text_config=tower | own | (text or {}), vision_config=tower | size | (vision or {}), projection_dim=32
    )
    model = CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2) if parameter.ndim > 1 else parameter.add_(0.1 * torch.randn(parameter.shape))
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def features(folder: Path, texts: list[str], images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Text and image features by stock transformers, in float32."""
    encoder = TextEncoder.load(folder)
    model = CLIPModel.from_pretrained(folder).float().eval()
    model.config.text_config.eos_token_id = encoder.tokenizer.eos_token_id
    ids = tokenize(encoder.tokenizer, texts, length=encoder.positions, pad_id=encoder.tokenizer.pad_token_id)
    with torch.no_grad():
        return model.get_text_features(ids).pooler_output, model.get_image_features(images).pooler_output


def read_as_openai(state: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Text features as OpenAI's and Long-CLIP's own code computes them, from a file's tensors alone: heads of 64."""
    table = state["positional_embedding"]
    if "positional_embedding_res" in state:
        first = (torch.arange(len(table)) < 20)[:, None]
        table = table * first + state["positional_embedding_res"] * ~first
    x = state["token_embedding.weight"][ids] + table
    width = x.shape[-1]
    mask = torch.full((len(table), len(table)), -torch.inf).triu(1)
    block = 0
    while f"transformer.resblocks.{block}.ln_1.weight" in state:
        at = f"transformer.resblocks.{block}."
        get = {name.removeprefix(at): tensor for name, tensor in state.items() if name.startswith(at)}
        y = functional.layer_norm(x, (width,), get["ln_1.weight"], get["ln_1.bias"]).transpose(0, 1)
        y, _ = functional.multi_head_attention_forward(
            y, y, y, width, width // 64, get["attn.in_proj_weight"], get["attn.in_proj_bias"], None, None, False, 0.0,
            get["attn.out_proj.weight"], get["attn.out_proj.bias"], attn_mask=mask, need_weights=False,
        )  # fmt: skip
        x = x + y.transpose(0, 1)
        y = functional.layer_norm(x, (width,), get["ln_2.weight"], get["ln_2.bias"])
        y = functional.linear(y, get["mlp.c_fc.weight"], get["mlp.c_fc.bias"])
        x = x + functional.linear(y * torch.sigmoid(1.702 * y), get["mlp.c_proj.weight"], get["mlp.c_proj.bias"])
        block += 1
    x = functional.layer_norm(x, (width,), state["ln_final.weight"], state["ln_final.bias"])
    return x[torch.arange(len(x)), ids.argmax(dim=-1)] @ state["text_projection"]


def ids_of(folder: Path) -> torch.Tensor:
    encoder = TextEncoder.load(folder)
    return tokenize(encoder.tokenizer, TEXTS, length=encoder.positions, pad_id=0)
