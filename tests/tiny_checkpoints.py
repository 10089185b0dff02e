"""Tiny checkpoints in other people's formats, made by the libraries themselves where they can make them."""

import copy
import warnings
from pathlib import Path

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from debias_sd.checkpoints.convert import Conversion, clip_tokenizer, convert_checkpoint

WIDTH, PROJECTION, LAYERS = 64, 32, 2
END = 49407
State = dict[str, Tensor]


def tiny_open_clip(
    *, custom: bool = False, quick_gelu: bool = False, length: int = 77, width: int = WIDTH, seed: int = 0
) -> CLIP | CustomTextCLIP:
    """A CLIP of open_clip's own, in the standard or the custom-text layout, with a Vision Transformer of 2 blocks."""
    torch.manual_seed(seed)
    text = CLIPTextCfg(context_length=length, width=width, heads=width // 64, layers=LAYERS)
    vision = CLIPVisionCfg(layers=LAYERS, width=64, head_width=64, patch_size=16, image_size=32)
    kind = CustomTextCLIP if custom else CLIP
    model = kind(embed_dim=PROJECTION, vision_cfg=vision, text_cfg=text, quick_gelu=quick_gelu).eval()
    return with_random_tables(model)


def with_random_tables(model: CLIP | CustomTextCLIP) -> CLIP | CustomTextCLIP:
    """Return `model` itself, its every tensor random: norms and biases start at 0 and 1, where a swapped one would not
    show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("token_embedding.weight"):
                parameter.normal_(std=0.5)
            elif name.endswith("positional_embedding"):
                parameter.normal_(std=0.2)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def text_features(model: CLIP | CustomTextCLIP, ids: Tensor) -> Tensor:
    """What open_clip itself computes, projected and not normalised."""
    with torch.no_grad():
        return model.encode_text(ids)


def tiny_transformers(*, length: int = 77, width: int = WIDTH, seed: int = 0) -> CLIPTextModelWithProjection:
    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=49408, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=LAYERS,
        num_attention_heads=width // 64, max_position_embeddings=length, projection_dim=PROJECTION,
        bos_token_id=49406, eos_token_id=END,
    )  # fmt: skip
    model = CLIPTextModelWithProjection(config).eval()
    torch.nn.init.normal_(model.text_model.embeddings.token_embedding.weight, std=0.5)
    torch.nn.init.normal_(model.text_model.embeddings.position_embedding.weight, std=0.2)
    return model


def long_clip(model: CLIP, *, noise: float = 1.0) -> State:
    """The state of `model`, of 248 positions, as Long-CLIP saves it: with a second table unlike the first."""
    state = clone(model.state_dict())
    table = state["positional_embedding"]
    state["positional_embedding_res"] = table + noise * torch.randn(table.shape, generator=generator(7))
    return state


def long_clip_features(model: CLIP, state: State, ids: Tensor) -> Tensor:
    """Long-CLIP's forward, on open_clip's code: both tables under Long-CLIP's two masks."""
    running = copy.deepcopy(model)
    first = torch.zeros(248, 1)
    first[:20] = 1
    with torch.no_grad():
        mixed = state["positional_embedding"] * first + state["positional_embedding_res"] * (1 - first)
        running.positional_embedding.copy_(mixed)
    return text_features(running, ids)


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor.clone() for name, tensor in state.items()}


def clone(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def around_stable_diffusion() -> State:
    """Some of the tensors that stand around the text encoder in a Stable Diffusion file."""
    names = (
        "model.diffusion_model.input_blocks.0.0.weight", "model.diffusion_model.out.2.bias",
        "first_stage_model.decoder.conv_in.weight", "first_stage_model.quant_conv.bias", "model_ema.decay",
        "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_one_minus_alphas_cumprod", "posterior_variance",
        "log_one_minus_alphas_cumprod", "logvar",
    )  # fmt: skip
    return {name: torch.zeros(3) for name in names}


def save_torchscript(model: CLIP, path: Path) -> Path:
    """Trace `model` as OpenAI's release did, with its three constants as buffers, in half precision where theirs is."""
    model = copy.deepcopy(model)
    for name, value in (("input_resolution", 32), ("context_length", 77), ("vocab_size", 49408)):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and the model has asserts that a trace keeps
        inputs = (torch.randn(1, 3, 32, 32, generator=generator(0)), padded(token_ids(9), 77))
        torch.jit.trace(model, inputs, check_trace=False).save(str(path))
    return path


def save_folder(model: CLIPTextModelWithProjection, folder: Path, *, tokenizer: bool = True) -> Path:
    model.save_pretrained(folder)
    if tokenizer:
        words = clip_tokenizer()
        words.model_max_length = model.config.max_position_embeddings
        words.save_pretrained(folder)
    return folder


def save_safetensors(state: State, path: Path) -> Path:
    save_file(clone(state), path)
    return path


def token_ids(length: int, *, batch: int = 1) -> Tensor:
    """Ids of a text of `length` tokens, start and end token counted."""
    words = torch.randint(300, 40000, (batch, length - 2), generator=generator(length))
    ends = torch.full((batch, 1), END)
    return torch.cat([ends - 1, words, ends], dim=1)


def padded(ids: Tensor, length: int) -> Tensor:
    """Pad with 0 as open_clip does: its CLIP reads full windows only."""
    return torch.cat([ids, torch.zeros(len(ids), length - ids.shape[1], dtype=torch.long)], dim=1)


def converted_features(folder: Path, ids: Tensor) -> Tensor:
    """What stock transformers computes from an encoder folder: projected text vectors."""
    model = CLIPTextModelWithProjection.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids).text_embeds


def convert_state(state: dict[str, object], tmp_path: Path, **options: object) -> Conversion:
    """Save `state` as a torch file and convert it, both below `tmp_path`."""
    torch.save(state, tmp_path / "in.pt")
    return convert_checkpoint(tmp_path / "in.pt", tmp_path / "out", **options)


def equal_features(conversion: Conversion, expected: Tensor, ids: Tensor) -> None:
    """Assert that the converted folder computes `expected`, and that the conversion measured as much."""
    torch.testing.assert_close(converted_features(conversion.folder, ids), expected, rtol=0, atol=2e-5)
    assert max(conversion.differences.values()) < 1e-4
