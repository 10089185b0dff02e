"""The tensors that a conversion writes, those that it is checked against, and what they compute.

All is in OpenAI's naming. The two differ where a conversion is exact by an argument, not by renaming: two position
tables become one. Everything that is a choice (which tables, a stretch, the dtype, a layer that the target leaves out)
is made on both sides.

What a checkpoint computes is written out in plain torch, on its own tensors: a conversion is checked against this, not
against the code it converts for. Source: OpenAI's CLIP (clip/model.py): pre-norm residual blocks, fused queries, keys
and values, a causal mask in the text tower only, the text pooled at its end token. Long-CLIP (arXiv 2403.15378) adds
the first table on its rows below 20 and the second on the others. All is computed in float32, one block at a time, so
that a large checkpoint in float16 fits beside its model.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from debias_sd.checkpoints.keys import State, vision_to_openai
from debias_sd.checkpoints.layouts import TRAINED, Tower
from debias_sd.positions import KEEP, merge_position_tables, stretch_positions
from debias_sd.text import count_of

TABLES = ("trained", "published")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SD2_LAYERS = 24  # Stable Diffusion 2.x reads the states before the last of these; diffusers keeps 23


class Weights(NamedTuple):
    """One text tower twice, and the image tower."""

    source: State
    """As the checkpoint computes it, all blocks and both tables."""
    written: State
    """As the folder has it, one table."""
    image: State
    layers: int
    """Blocks that are written."""
    dtype: torch.dtype
    notes: tuple[str, ...]


def resolve_weights(
    name: str,
    tower: Tower,
    *,
    target: str | None,
    positions: str,
    positions_needed: int | None,
    stretch: bool,
    image_tower: bool,
    dtype: str | None,
) -> Weights:
    """Choose tables, length, layers and dtype; `name` is the checkpoint's, for messages.

    Raises ValueError for tensors that are not finite or no floating-point numbers, for a choice that the checkpoint
    does not have, and for too few positions.
    """
    notes: list[str] = []
    image = _image(name, tower, wanted=image_tower)
    chosen = _table_choice(name, tower.text, positions)
    width = None if dtype is None else DTYPES[dtype]
    source = _cast(name, chosen, width)
    text_dtype = source["token_embedding.weight"].dtype
    image = _cast(name, image, text_dtype)
    written = dict(source)
    if TRAINED in source:
        written["positional_embedding"] = merge_position_tables(source["positional_embedding"], written.pop(TRAINED))
    rows = len(written["positional_embedding"])
    if stretch:
        written["positional_embedding"] = _stretched(name, written["positional_embedding"])
        source = {key: tensor for key, tensor in source.items() if key != TRAINED}
        source["positional_embedding"] = written["positional_embedding"]
        notes.append(f"positions stretched from {rows} to {len(written['positional_embedding'])}, not trained")
    rows = len(written["positional_embedding"])
    if positions_needed is not None and rows < positions_needed:
        raise ValueError(
            f"{name}: this file has {rows} positions but needs {positions_needed}; give a longer checkpoint, or "
            "--stretch for 248 without training."
        )
    layers = count_blocks(source, "")
    if target == "sd2" and layers == SD2_LAYERS:
        if image_tower:
            raise ValueError(
                "--target sd2 leaves out the last layer, which a whole CLIPModel needs; give one of the two."
            )
        layers -= 1
        last = f"transformer.resblocks.{layers}."
        written = {key: one for key, one in written.items() if not key.startswith(last) and key != "text_projection"}
        notes.append(
            f"layer {SD2_LAYERS} and the projection after it left out: Stable Diffusion 2.x reads layer {layers}"
        )
    return Weights(source, written, image, layers, text_dtype, tuple(notes))


def _table_choice(name: str, text: State, positions: str) -> State:
    if positions not in TABLES:
        raise ValueError(f"positions is {positions!r} but must be {' or '.join(TABLES)}.")
    if positions == "trained":
        return text
    if TRAINED not in text:
        rows = len(text["positional_embedding"])
        raise ValueError(
            f"{name} has one position table, of {rows} rows; --positions chooses between two: leave it out."
        )
    return {key: tensor for key, tensor in text.items() if key != TRAINED}


def _stretched(name: str, table: Tensor) -> Tensor:
    if len(table) > 77 or len(table) < KEEP + 2:
        raise ValueError(
            f"{name}: this file has {count_of(len(table), 'position')} but --stretch is for {KEEP + 2} to 77; "
            "leave it out."
        )
    return stretch_positions(table)


def _image(name: str, tower: Tower, *, wanted: bool) -> State:
    if not wanted:
        return {}
    if not tower.image:
        raise ValueError(f"{name} holds no image tower; leave out --image-tower, or give the whole CLIP model.")
    if "text_projection" not in tower.text:
        raise ValueError(f"{name} holds no text projection, which a whole CLIPModel needs; leave out --image-tower.")
    if tower.naming != "openai":
        return vision_to_openai(tower.image)
    if "visual.class_embedding" not in tower.image:
        kind = "a timm network" if any(key.startswith("visual.trunk.") for key in tower.image) else "a ResNet"
        raise ValueError(
            f"the image tower of {name} is {kind} but a CLIPModel's is a Vision Transformer; leave out --image-tower "
            "to convert the text tower."
        )
    return tower.image


def _cast(name: str, state: State, dtype: torch.dtype | None) -> State:
    """Return `state` in one dtype, the widest of its own unless told, each tensor with memory of its own."""
    for key, tensor in state.items():
        if tensor.dtype not in (*DTYPES.values(), torch.float64):
            allowed = " or ".join(DTYPES)
            raise ValueError(f"{key} of {name} is {tensor.dtype} but must be {allowed}; give an unquantised file.")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{key} of {name} holds NaN or infinite values; the checkpoint is broken: give another.")
    if dtype is None and state:
        dtype = torch.float16 if all(one.dtype == torch.float16 for one in state.values()) else None
        for tensor in state.values():
            dtype = tensor.dtype if dtype is None else torch.promote_types(dtype, tensor.dtype)
    cast = {key: tensor.to(dtype, copy=True).contiguous() for key, tensor in state.items()}
    for key, tensor in cast.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{key} of {name} has values too large for {dtype}; give another --dtype.")
    return cast


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
