"""CLIP's two towers written out in plain torch, on a checkpoint's own tensors in OpenAI's naming.

A conversion is checked against this, not against the code it converts for. Source: OpenAI's CLIP (clip/model.py):
pre-norm residual blocks, fused queries, keys and values, a causal mask in the text tower only, the text pooled at its
end token. Long-CLIP (arXiv 2403.15378) adds the first table on its rows below 20 and the second on the others.
All is computed in float32, one block at a time, so that a large checkpoint in float16 fits beside its model.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from debias_sd.positions import KEEP

State = Mapping[str, Tensor]


class TextStates(NamedTuple):
    """What a text tower makes of token ids; `features` only where it has a projection."""

    penultimate: Float[Tensor, "batch tokens width"]
    last: Float[Tensor, "batch tokens width"]
    pooled: Float[Tensor, "batch width"]
    features: Float[Tensor, "batch projection"] | None


@torch.no_grad()
def text_states(
    state: State,
    ids: Int[Tensor, "batch tokens"],
    *,
    heads: int,
    activation: str,
    epsilon: float,
    end_id: int,
    layers: int | None = None,
) -> TextStates:
    """Run the text tower `state`, up to `layers` blocks: states before the last block and after the final norm.

    `state` may hold `positional_embedding_res`, Long-CLIP's second table, used from row 20 on.
    """
    length = ids.shape[1]
    hidden = state["token_embedding.weight"][ids].float() + _positions(state, length)
    mask = torch.full((length, length), float("-inf")).triu(1)
    penultimate = hidden
    for index in range(count_blocks(state, "") if layers is None else layers):
        penultimate = hidden
        block = _block(state, f"transformer.resblocks.{index}.")
        hidden = _residual(block, hidden, heads=heads, activation=activation, epsilon=epsilon, mask=mask)
    last = _norm(state, "ln_final", hidden, epsilon)
    pooled = last[torch.arange(len(ids)), (ids == end_id).int().argmax(dim=1)]
    projection = state.get("text_projection")
    return TextStates(penultimate, last, pooled, None if projection is None else pooled @ projection.float())


@torch.no_grad()
def image_features(
    state: State,
    images: Float[Tensor, "batch channels height width"],
    *,
    heads: int,
    activation: str,
    epsilon: float,
) -> Float[Tensor, "batch projection"]:
    """Run the ViT image tower `state` (keys with `visual.`) and project its class token."""
    kernel = state["visual.conv1.weight"].float()
    patches = functional.conv2d(images, kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    first = state["visual.class_embedding"].float().expand(len(images), 1, -1)
    hidden = torch.cat([first, patches], dim=1) + state["visual.positional_embedding"].float()
    hidden = _norm(state, "visual.ln_pre", hidden, epsilon)
    for index in range(count_blocks(state, "visual.")):
        block = _block(state, f"visual.transformer.resblocks.{index}.")
        hidden = _residual(block, hidden, heads=heads, activation=activation, epsilon=epsilon, mask=None)
    return _norm(state, "visual.ln_post", hidden[:, 0], epsilon) @ state["visual.proj"].float()


def count_blocks(state: State, tower: str) -> int:
    """Return the number of blocks of a tower: "" for text, "visual." for images."""
    prefix, suffix = f"{tower}transformer.resblocks.", ".attn.in_proj_weight"
    return sum(name.startswith(prefix) and name.endswith(suffix) for name in state)


def _positions(state: State, length: int) -> Tensor:
    table = state["positional_embedding"][:length].float()
    second = state.get("positional_embedding_res")
    if second is None:
        return table
    is_first = (torch.arange(length) < KEEP).float()[:, None]
    return table * is_first + second[:length].float() * (1 - is_first)


def _block(state: State, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in state.items() if name.startswith(prefix)}


def _residual(
    block: State, hidden: Tensor, *, heads: int, activation: str, epsilon: float, mask: Tensor | None
) -> Tensor:
    batch, length, width = hidden.shape
    fused = functional.linear(
        _norm(block, "ln_1", hidden, epsilon), block["attn.in_proj_weight"], block["attn.in_proj_bias"]
    )
    query, key, value = (part.view(batch, length, heads, -1).transpose(1, 2) for part in fused.chunk(3, dim=-1))
    scores = query @ key.transpose(-1, -2) / (width // heads) ** 0.5
    attended = (scores if mask is None else scores + mask).softmax(dim=-1) @ value
    attended = attended.transpose(1, 2).reshape(batch, length, width)
    hidden = hidden + functional.linear(attended, block["attn.out_proj.weight"], block["attn.out_proj.bias"])
    inner = functional.linear(_norm(block, "ln_2", hidden, epsilon), block["mlp.c_fc.weight"], block["mlp.c_fc.bias"])
    inner = inner * torch.sigmoid(1.702 * inner) if activation == "quick_gelu" else functional.gelu(inner)
    return hidden + functional.linear(inner, block["mlp.c_proj.weight"], block["mlp.c_proj.bias"])


def _norm(state: State, name: str, hidden: Tensor, epsilon: float) -> Tensor:
    weight, bias = state[name + ".weight"].float(), state[name + ".bias"].float()
    return functional.layer_norm(hidden, weight.shape, weight, bias, epsilon)
