"""The two namings of one CLIP, renamed both ways and exactly: transformers' and OpenAI's.

OpenAI's naming (github.com/openai/CLIP, clip/model.py) is also Long-CLIP's and open_clip's, and that of single-file
text encoders. It differs in three things: the names; queries, keys and values lie in one fused tensor, in this order;
the two projections stand transposed. Nothing is computed, so there and back gives every tensor bit for bit.

Worked number: a block of 16 tensors in transformers' naming is one of 12 in OpenAI's (queries, keys and values with
their biases are 6 there and 2 here).
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]


class _Entry(NamedTuple):
    """One tensor in OpenAI's naming, its tensors in transformers' and the shape of each of those."""

    openai: str
    transformers: tuple[str, ...]
    shape: tuple[str, ...]
    transposed: bool = False


class _Tower(NamedTuple):
    """Prefixes and the tensors outside the blocks; the optional ones have no prefix."""

    noun: str
    openai: str
    transformers: str
    entries: tuple[_Entry, ...]
    optional: tuple[_Entry, ...]


def _pair(openai: str, transformers: str, weight: tuple[str, ...], bias: tuple[str, ...]) -> tuple[_Entry, _Entry]:
    return (
        _Entry(openai + ".weight", (transformers + ".weight",), weight),
        _Entry(openai + ".bias", (transformers + ".bias",), bias),
    )


_WIDTH = ("width",)
_SQUARE = ("width", "width")
_TABLE = _Entry("positional_embedding", ("embeddings.position_embedding.weight",), ("positions", "width"))
_TEXT = _Tower(
    noun="text tower",
    openai="",
    transformers="text_model.",
    entries=(
        _TABLE,
        _Entry("token_embedding.weight", ("embeddings.token_embedding.weight",), ("tokens", "width")),
        *_pair("ln_final", "final_layer_norm", _WIDTH, _WIDTH),
    ),
    optional=(
        _Entry("text_projection", ("text_projection.weight",), ("projection", "width"), transposed=True),
        _Entry("logit_scale", ("logit_scale",), ()),
    ),
)
_VISION = _Tower(
    noun="image tower",
    openai="visual.",
    transformers="vision_model.",
    entries=(
        _TABLE,
        _Entry("class_embedding", ("embeddings.class_embedding",), _WIDTH),
        _Entry("conv1.weight", ("embeddings.patch_embedding.weight",), ("width", "channels", "patch", "patch")),
        *_pair("ln_pre", "pre_layrnorm", _WIDTH, _WIDTH),  # transformers' own spelling
        *_pair("ln_post", "post_layernorm", _WIDTH, _WIDTH),
    ),
    optional=(_Entry("visual.proj", ("visual_projection.weight",), ("projection", "width"), transposed=True),),
)
_BLOCK = (
    *_pair("ln_1", "layer_norm1", _WIDTH, _WIDTH),
    _Entry("attn.in_proj_weight", tuple(f"self_attn.{one}_proj.weight" for one in "qkv"), _SQUARE),
    _Entry("attn.in_proj_bias", tuple(f"self_attn.{one}_proj.bias" for one in "qkv"), _WIDTH),
    *_pair("attn.out_proj", "self_attn.out_proj", _SQUARE, _WIDTH),
    *_pair("ln_2", "layer_norm2", _WIDTH, _WIDTH),
    *_pair("mlp.c_fc", "mlp.fc1", ("hidden", "width"), ("hidden",)),
    *_pair("mlp.c_proj", "mlp.fc2", ("width", "hidden"), _WIDTH),
)
_OPENAI_BLOCKS, _BLOCKS = "transformer.resblocks.", "encoder.layers."
_FLAT = ("embeddings.", "encoder.", "final_layer_norm.", "pre_layrnorm.", "post_layernorm.")


def text_to_openai(state: Mapping[str, Tensor]) -> State:
    """Return a text tower in OpenAI's naming from transformers' naming.

    Keys with `text_model.` in front and keys without (transformers 5.6 and newer) are both read;
    `text_projection.weight` [projection, width] and `logit_scale` may be there. Tensors keep their dtype, those that
    only change their name are the same objects. Raises ValueError, naming the key, for one that is missing, unknown,
    or does not fit the tower's others.
    """
    return _to_openai(state, _TEXT)


def text_from_openai(state: Mapping[str, Tensor]) -> State:
    """Return a text tower in transformers' naming, `text_model.` in front; the reverse of `text_to_openai`.

    `text_projection` [width, projection] and `logit_scale` may be there. Raises ValueError as `text_to_openai` does.
    """
    return _from_openai(state, _TEXT)


def vision_to_openai(state: Mapping[str, Tensor]) -> State:
    """Return a ViT image tower in OpenAI's naming (`visual.`) from transformers' (`vision_model.`, or flat).

    `visual_projection.weight` [projection, width] may be there. Raises ValueError as `text_to_openai` does.
    """
    return _to_openai(state, _VISION)


def vision_from_openai(state: Mapping[str, Tensor]) -> State:
    """Return a ViT image tower in transformers' naming from OpenAI's; the reverse of `vision_to_openai`."""
    return _from_openai(state, _VISION)


def clip_to_openai(state: Mapping[str, Tensor]) -> State:
    """Return a whole `CLIPModel`'s tensors in OpenAI's naming: both towers, projections and `logit_scale`."""
    image = {name for name in state if name.startswith((_VISION.transformers, "visual_projection."))}
    text = {name: tensor for name, tensor in state.items() if name not in image}
    return text_to_openai(text) | vision_to_openai({name: state[name] for name in image})


def shown(name: str) -> str:
    """Return a key as a message can hold it: one line, no control characters.

    >>> shown("visual.proj"), shown("a\\nb")
    ('visual.proj', "'a\\\\nb'")
    """
    return name if name.isprintable() else ascii(name)


def _to_openai(state: Mapping[str, Tensor], tower: _Tower) -> State:
    given = {(tower.transformers if name.startswith(_FLAT) else "") + name: name for name in state}
    if len(given) < len(state):
        raise ValueError(f"the {tower.noun} names a tensor both with and without {tower.transformers}; keep one.")
    check = _Check(state, given, tower)
    renamed = {}
    for entry in _entries(given, tower, tower.transformers + _BLOCKS):
        if check.is_left_out(entry, entry.transformers):
            continue
        parts = [check.take(name, entry.shape) for name in entry.transformers]
        if len({part.dtype for part in parts}) > 1:
            raise ValueError(
                f"{given[entry.transformers[0]]} is {parts[0].dtype} and another of its queries, keys and values is "
                "not, but OpenAI's naming keeps the three in one tensor; give them one dtype."
            )
        tensor = torch.cat(parts) if len(parts) > 1 else parts[0]
        renamed[entry.openai] = tensor.T.contiguous() if entry.transposed else tensor
    check.nothing_left()
    return renamed


def _from_openai(state: Mapping[str, Tensor], tower: _Tower) -> State:
    check = _Check(state, {name: name for name in state}, tower)
    renamed = {}
    for entry in _entries(state, tower, tower.openai + _OPENAI_BLOCKS):
        if check.is_left_out(entry, (entry.openai,)):
            continue
        shape = entry.shape[::-1] if entry.transposed else entry.shape
        tensor = check.take(entry.openai, shape, times=len(entry.transformers))
        if entry.transposed:
            tensor = tensor.T.contiguous()
        # Copies, not views: a view would keep the fused tensor alive, and safetensors refuses shared memory.
        parts = [part.clone() for part in tensor.chunk(3)] if len(entry.transformers) == 3 else [tensor]
        renamed.update(zip(entry.transformers, parts, strict=True))
    check.nothing_left()
    return renamed


def _entries(names: Mapping[str, object], tower: _Tower, blocks: str) -> Iterator[_Entry]:
    """Yield every entry of a tower with full names: as many blocks as `names` has numbers after `blocks`, one at least.

    Counted, not up to the largest: a number of twenty digits in a damaged file is one block too many.
    """
    numbers = {found[1] for name in names if (found := re.match(re.escape(blocks) + r"(\d+)\.", name))}
    parts = [("", "", entry) for entry in tower.entries]
    for index in range(max(1, len(numbers))):
        parts += [(f"{_OPENAI_BLOCKS}{index}.", f"{_BLOCKS}{index}.", entry) for entry in _BLOCK]
    for openai, transformers, entry in parts:
        yield entry._replace(
            openai=tower.openai + openai + entry.openai,
            transformers=tuple(tower.transformers + transformers + name for name in entry.transformers),
        )
    yield from tower.optional


class _Check:
    """Takes each tensor of a tower once, and sees that all of them fit together."""

    def __init__(self, state: Mapping[str, Tensor], given: Mapping[str, str], tower: _Tower) -> None:
        self.state, self.given, self.tower = state, given, tower
        self.left = dict(given)
        self.sizes: dict[str, int] = {}

    def is_left_out(self, entry: _Entry, names: tuple[str, ...]) -> bool:
        return entry in self.tower.optional and not any(name in self.given for name in names)

    def take(self, name: str, shape: tuple[str, ...], *, times: int = 1) -> Tensor:
        """Return the tensor `name`; its first dimension is `times` the size that `shape` names first."""
        if self.left.pop(name, None) is None:
            raise ValueError(f"the {self.tower.noun} lacks {name}; give the complete checkpoint.")
        tensor = self.state[self.given[name]]
        found = tuple(tensor.shape)
        whole = not found or found[0] % times == 0
        sizes = (found[0] // times, *found[1:]) if found and whole else found
        expected = self._expected(shape, times)
        fits = whole and len(sizes) == len(shape)
        if (
            not fits
            or 0 in found
            or any(self.sizes.setdefault(one, size) != size for one, size in zip(shape, sizes, strict=True))
        ):
            raise ValueError(
                f"{shown(self.given[name])} is {list(found)}, expected {expected} as in the rest of the "
                f"{self.tower.noun}; give a checkpoint whose tensors belong to one model."
            )
        return tensor

    def nothing_left(self) -> None:
        if self.left:
            raise ValueError(
                f"the {self.tower.noun} holds an unknown tensor, {shown(min(self.left.values()))} ({len(self.left)} in "
                "all); remove what does not belong to a CLIP model."
            )

    def _expected(self, shape: tuple[str, ...], times: int) -> str:
        sizes = [str(self.sizes.get(one, one)) for one in shape]
        return "[" + ", ".join([f"{times} x {sizes[0]}", *sizes[1:]] if times > 1 else sizes) + "]"
