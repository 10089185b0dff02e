"""All captions of a batch in one pass of the text tower, without a slot that nothing reads.

Under CLIP's causal mask a token's states depend only on what stands before it. So nothing after the end token is
computed, and `[SOT, PAD, PAD, ...]`, with which every short caption of the debias recipe begins, is computed once for
the batch: the first `n + 1` states of the longest such prefix are those of a caption with `n` front pads. Long captions
share its first state, the start token's. The gradient of shared states is the sum over the captions that read them.

Tokens lie in one row `[1, N, width]`: the prefix, then each caption's own tokens. Everything but attention works token
by token; attention is `packed_attention`, which transformers calls by its name. In the last layer, only the end tokens
are read, so only they are computed there, unless hidden states are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import CLIPTextModel

NAME = "packed_captions"
GROUP = {"cpu": 1}  # captions to one attention call: on a CPU, padding costs more than calls
GROUP_ELSEWHERE = 32


class Group(NamedTuple):
    """Captions of like length whose attention is computed together, padded to the longest.

    queries, int64 [g, m], and keys, int64 [g, k]: places in the row. seen, bool [g, 1, m, k]: which key each query
    attends to; padded queries see the start token alone. ends, bool [g, 1, 1, k]: the same for the end token.
    """

    queries: Tensor
    keys: Tensor
    seen: Tensor
    ends: Tensor


class Packing(NamedTuple):
    """Where the tokens of a batch lie in the row of N tokens.

    ids and positions, int64 [N]. ends, int64 [b]: the end tokens in the order of the captions. groups: see Group; the
    first is the prefix alone. back, int64 [N]: from the groups' queries, one after the other, to the row; back_ends,
    int64 [b]: from the groups' captions to the order of the batch. places, int64 [b, L]: the token of every slot up to
    the end token, -1 after it. queries and keys, int64 [*]: those of all groups, one after the other.
    """

    ids: Tensor
    positions: Tensor
    ends: Tensor
    groups: tuple[Group, ...]
    back: Tensor
    back_ends: Tensor
    places: Tensor
    queries: Tensor
    keys: Tensor


class Span(NamedTuple):
    """One caption in the row: its own tokens are `start` to `start + own`, after the first `shared` of the prefix."""

    start: int
    own: int
    shared: int
    row: int


def pack_captions(ids: Tensor, *, end_id: int, pad_id: int) -> Packing:
    """Plan the row for token ids [b, L], each caption with an end token; made on the CPU, returned on their device.

    Pads in front are told by their id: a text that opens with the token of that id loses nothing, it is the same token
    at the same position.
    """
    where, ids = ids.device, ids.cpu()
    ends = (ids == end_id).int().argmax(dim=1)
    fronts = (ids[:, 1:] == pad_id).int().cumprod(dim=1).sum(dim=1).minimum(ends - 1)
    rows = zip(ids, ends.tolist(), fronts.tolist(), strict=True)
    longest = int(fronts.argmax())
    length = int(fronts[longest]) + 1
    parts, positions, spans, at = [ids[longest, :length]], [torch.arange(length)], [], length
    for row, (caption, end, front) in enumerate(rows):
        own = caption[front + 1 : end + 1]
        parts.append(own)
        positions.append(torch.arange(front + 1, end + 1))
        spans.append(Span(at, len(own), front + 1, row))
        at += len(own)
    groups, back, back_ends = _make_groups(spans, length, at, size=GROUP.get(where.type, GROUP_ELSEWHERE))
    whole = {
        "ids": torch.cat(parts),
        "positions": torch.cat(positions),
        "ends": torch.tensor([span.start + span.own - 1 for span in spans]),
        "back": back,
        "back_ends": back_ends,
        "places": _places(spans, ids.shape[1]),
        "queries": torch.cat([group.queries.flatten() for group in groups]),
        "keys": torch.cat([group.keys.flatten() for group in groups]),
    }
    whole = {name: tensor.to(where, non_blocking=True) for name, tensor in whole.items()}
    return Packing(groups=tuple(Group(*(t.to(where, non_blocking=True) for t in group)) for group in groups), **whole)


def _make_groups(spans: list[Span], prefix: int, total: int, *, size: int) -> tuple[list[Group], Tensor, Tensor]:
    """The prefix and the captions in groups of `size`, with the way back of both queries and captions."""
    slots = torch.arange(prefix)[None]
    causal = torch.ones(1, 1, prefix, prefix, dtype=torch.bool).tril()
    groups = [Group(slots, slots, causal, causal[:, :, -1:])]
    back, back_ends, at = torch.empty(total, dtype=torch.long), torch.empty(len(spans), dtype=torch.long), prefix
    back[:prefix] = slots[0]
    order = sorted(spans, key=lambda span: (span.own, span.shared))
    for first in range(0, len(order), size):
        members = order[first : first + size]
        group = _make_group(members)
        for place, span in enumerate(members):
            back[span.start : span.start + span.own] = at + torch.arange(span.own)
            back_ends[span.row] = first + place
            at += group.queries.shape[1]
        groups.append(group)
    return groups, back, back_ends


def _make_group(members: list[Span]) -> Group:
    longest, reach = max(span.own for span in members), max(span.shared + span.own for span in members)
    queries = torch.zeros(len(members), longest, dtype=torch.long)
    keys = torch.zeros(len(members), reach, dtype=torch.long)
    seen = torch.zeros(len(members), 1, longest, reach, dtype=torch.bool)
    seen[..., 0] = True
    for place, (start, own, shared, _) in enumerate(members):
        tokens = torch.arange(start, start + own)
        queries[place, :own] = tokens
        keys[place, : shared + own] = torch.cat([torch.arange(shared), tokens])
        seen[place, 0, :own, : shared + own] = torch.ones(own, shared + own, dtype=torch.bool).tril(shared)
    ends = torch.stack([seen[place, :, span.own - 1 : span.own] for place, span in enumerate(members)])
    return Group(queries, keys, seen, ends)


def _places(spans: list[Span], length: int) -> Tensor:
    places = torch.full((len(spans), length), -1, dtype=torch.long)
    for start, own, shared, row in spans:
        places[row, :shared] = torch.arange(shared)
        places[row, shared : shared + own] = torch.arange(start, start + own)
    return places


def _attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, **options: float) -> Tensor:
    """Attention of [g, m, heads, d] to [g, k, heads, d]; returns [g * m, heads, d]."""
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(*heads_first, attn_mask=seen, **options).transpose(1, 2).flatten(0, 1)


def _deal(row: Tensor, places: Tensor, groups: list[Tensor]) -> list[Tensor]:
    """The row [N, heads, d] at each group's places [g, k], as [g, k, heads, d]; `places` has those of all groups.

    Indexed once for all: every indexing has a gradient of N rows, and one a group would cost the batch's square.
    """
    parts = row[places].split([group.numel() for group in groups])
    return [part.view(*group.shape, *row.shape[1:]) for part, group in zip(parts, groups, strict=True)]


def _attend_groups(
    queries: list[Tensor], key: Tensor, value: Tensor, packing: Packing, seen: list[Tensor], **options: float
) -> Tensor:
    """Attention of the last groups' queries [g, m, heads, d] to their keys in the row [N, heads, d]; one row.

    On CPUs in float32 whatever autocast says: their bfloat16 kernel takes twice the time.
    """
    dtype = torch.float32 if key.device.type == "cpu" and key.dtype == torch.bfloat16 else key.dtype
    places = [group.keys for group in packing.groups]
    keys, values = (_deal(row.to(dtype), packing.keys, places)[-len(queries) :] for row in (key, value))
    with torch.autocast(key.device.type, enabled=False):
        out = [
            _attend(own.to(dtype), *read, mask, **options)
            for own, *read, mask in zip(queries, keys, values, seen, strict=True)
        ]
    return torch.cat(out).to(key.dtype)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention inside each caption of a row, [1, heads, N, d] to [1, N, heads, d]; without a packing, sdpa."""
    if packing is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    queries = _deal(query, packing.queries, [group.queries for group in packing.groups])
    seen = [group.seen for group in packing.groups]
    out = _attend_groups(queries, key, value, packing, seen, scale=scaling, dropout_p=dropout)
    return out[packing.back][None], None


def use_packed_attention(text_model: CLIPTextModel) -> None:
    """Let `text_model` attend by `packed_attention`, through transformers' own register of attentions."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    text_model.set_attn_implementation(NAME)


def encode_packed(
    text_model: CLIPTextModel, ids: Tensor, *, pad_id: int, states: bool, whole_layers: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the pooled states [b, w] of `ids` [b, L] and, with `states`, the hidden ones [b, L, w], 0 after the end.

    `text_model` must have `use_packed_attention`. `whole_layers` computes every token of the last layer too, through
    the layer's own call: engines that gather a layer's weights when it is called (FSDP2) need that.
    """
    packing = pack_captions(ids, end_id=text_model.config.eos_token_id, pad_id=pad_id)
    # N captions of one token: the embeddings refuse a row that is longer than the position table.
    tokens = text_model.embeddings(input_ids=packing.ids[:, None], position_ids=packing.positions[:, None])
    hidden = tokens.transpose(0, 1)
    *layers, last = text_model.encoder.layers
    for layer in layers:
        hidden = layer(hidden, None, packing=packing)
    if states or whole_layers:
        hidden = text_model.final_layer_norm(last(hidden, None, packing=packing)[0])
        placed = hidden[packing.places.clamp(min=0)] * (packing.places >= 0)[..., None] if states else None
        return hidden[packing.ends], placed
    return text_model.final_layer_norm(_last_of_ends(last, hidden[0], packing)), None


def _last_of_ends(layer: nn.Module, hidden: Tensor, packing: Packing) -> Tensor:
    """One layer's output for the end tokens only: [N, w] to [b, w]."""
    attention, normed = layer.self_attn, layer.layer_norm1(hidden)
    shape = (-1, attention.num_heads, attention.head_dim)
    key, value = attention.k_proj(normed).view(shape), attention.v_proj(normed).view(shape)
    # In the groups' order, as attention takes them; `back_ends` puts the result in the batch's.
    grouped = torch.empty_like(packing.ends)
    grouped[packing.back_ends] = packing.ends
    captions = packing.groups[1:]
    queries = attention.q_proj(normed[grouped]).view(shape).split([len(group.keys) for group in captions])
    queries = [query[:, None] for query in queries]
    out = _attend_groups(queries, key, value, packing, [group.ends for group in captions], scale=attention.scale)
    attended = attention.out_proj(out.flatten(1)[packing.back_ends])
    hidden = hidden[packing.ends] + attended
    return hidden + layer.mlp(layer.layer_norm2(hidden))


def pooled_image(vision_model: nn.Module, pixel_values: Tensor) -> Tensor:
    """The image tower's pooled states [b, w], its last layer computed for the class token alone."""
    hidden = vision_model.pre_layrnorm(vision_model.embeddings(pixel_values))
    *layers, last = vision_model.encoder.layers
    for layer in layers:
        hidden = layer(hidden, None)
    return vision_model.post_layernorm(last_layer_at(last, hidden, 0))


def last_layer_at(layer: nn.Module, hidden: Tensor, place: int) -> Tensor:
    """One layer's output at one position, which attends to all: [b, L, w] to [b, w]."""
    attention, normed = layer.self_attn, layer.layer_norm1(hidden)
    shape = (*hidden.shape[:2], attention.num_heads, attention.head_dim)
    key, value = attention.k_proj(normed).view(shape), attention.v_proj(normed).view(shape)
    query = attention.q_proj(normed[:, place : place + 1]).view(len(hidden), 1, *shape[2:])
    attended = _attend(query, key, value, None, scale=attention.scale).flatten(1)
    hidden = hidden[:, place] + attention.out_proj(attended)
    return hidden + layer.mlp(layer.layer_norm2(hidden))
