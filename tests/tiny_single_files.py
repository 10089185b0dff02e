"""Tiny pipelines in one file each, in the naming of their families' first releases: what diffusers' loaders undo."""

import torch
from diffusers import DiffusionPipeline, FluxTransformer2DModel, SD3Transformer2DModel
from torch import Tensor

from debias_sd.checkpoints.keys import text_to_openai

State = dict[str, Tensor]
RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
    "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
}  # fmt: skip
UNET = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2",
    "down_blocks.0.resnets.0": "input_blocks.1.0", "down_blocks.0.downsamplers.0.conv": "input_blocks.2.0.op",
    "down_blocks.1.resnets.0": "input_blocks.3.0", "down_blocks.1.attentions.0": "input_blocks.3.1",
    "mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
    "up_blocks.0.resnets.0": "output_blocks.0.0", "up_blocks.0.attentions.0": "output_blocks.0.1",
    "up_blocks.0.resnets.1": "output_blocks.1.0", "up_blocks.0.attentions.1": "output_blocks.1.1",
    "up_blocks.0.upsamplers.0.conv": "output_blocks.1.2.conv",
    "up_blocks.1.resnets.0": "output_blocks.2.0", "up_blocks.1.resnets.1": "output_blocks.3.0",
}  # fmt: skip
VAE = {
    "conv_norm_out": "norm_out", "mid_block.resnets.0": "mid.block_1", "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0.group_norm": "mid.attn_1.norm", "mid_block.attentions.0.to_q": "mid.attn_1.q",
    "mid_block.attentions.0.to_k": "mid.attn_1.k", "mid_block.attentions.0.to_v": "mid.attn_1.v",
    "mid_block.attentions.0.to_out.0": "mid.attn_1.proj_out",
    "down_blocks.0.resnets": "down.0.block", "down_blocks.1.resnets": "down.1.block",
    "down_blocks.0.downsamplers.0": "down.0.downsample",
    "up_blocks.0.resnets": "up.1.block", "up_blocks.1.resnets": "up.0.block",
    "up_blocks.0.upsamplers.0": "up.1.upsample", "conv_shortcut": "nin_shortcut",
}  # fmt: skip
SD3 = {
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "pos_embed.proj": "x_embedder.proj", "pos_embed.pos_embed": "pos_embed", "proj_out": "final_layer.linear",
    "norm_out.linear": "final_layer.adaLN_modulation.1", "transformer_blocks": "joint_blocks",
    "norm1.linear": "x_block.adaLN_modulation.1", "norm1_context.linear": "context_block.adaLN_modulation.1",
    "ff.net.0.proj": "x_block.mlp.fc1", "ff.net.2": "x_block.mlp.fc2",
    "ff_context.net.0.proj": "context_block.mlp.fc1", "ff_context.net.2": "context_block.mlp.fc2",
    "attn.to_out.0": "x_block.attn.proj", "attn.to_add_out": "context_block.attn.proj",
}  # fmt: skip
FLUX = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "norm_out.linear": "final_layer.adaLN_modulation.1", "context_embedder": "txt_in", "x_embedder": "img_in",
}  # fmt: skip
FLUX_DOUBLE = {
    "norm1.linear": "img_mod.lin", "norm1_context.linear": "txt_mod.lin", "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2", "ff_context.net.0.proj": "txt_mlp.0", "ff_context.net.2": "txt_mlp.2",
    "attn.to_out.0": "img_attn.proj", "attn.to_add_out": "txt_attn.proj",
    "attn.norm_q.weight": "img_attn.norm.query_norm.scale", "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
    "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
    "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
}  # fmt: skip
FLUX_SINGLE = {
    "norm.linear": "modulation.lin", "proj_out": "linear2", "attn.norm_q.weight": "norm.query_norm.scale",
    "attn.norm_k.weight": "norm.key_norm.scale",
}  # fmt: skip


def original_naming(pipe: DiffusionPipeline, *, encoders: bool = True) -> State:
    """The tensors of a tiny pipeline of any family in the naming of its first release, with its text encoders or not.

    Files of FLUX hold the transformer alone, without a prefix.
    """
    if isinstance(getattr(pipe, "transformer", None), FluxTransformer2DModel):
        return _clean(_flux(pipe.transformer.state_dict()))
    if isinstance(getattr(pipe, "transformer", None), SD3Transformer2DModel):
        denoiser = _sd3(pipe.transformer.state_dict())
    else:
        denoiser = _unet(pipe.unet.state_dict())
    state = _prefixed("model.diffusion_model.", denoiser) | _prefixed("first_stage_model.", _vae(pipe))
    return _clean(state | (_encoders(pipe) if encoders else {}))


def with_another_layer(state: State, prefix: str) -> State:
    """OpenCLIP's tower as files of Stable Diffusion 2 hold it: with the last layer, which is not read, as the 24th."""
    layers = {int(key.removeprefix(prefix).split(".")[0]) for key in state if key.startswith(prefix)}
    last = f"{prefix}{max(layers)}."
    more = {key.replace(last, f"{prefix}23."): tensor + 1 for key, tensor in state.items() if key.startswith(last)}
    return _clean(state | more)


def _clean(state: State) -> State:
    return {key: tensor.clone().contiguous() for key, tensor in state.items()}  # tied ones are two in a file


def _prefixed(prefix: str, state: State) -> State:
    return {prefix + key: tensor for key, tensor in state.items()}


def _renamed(key: str, names: dict[str, str]) -> str:
    for new, old in names.items():
        key = key.replace(new, old)
    return key


def _unet(state: State) -> State:
    found = {}
    for key, tensor in state.items():
        place = next(name for name in UNET if key.startswith(name + "."))
        rest = key.removeprefix(place)
        found[UNET[place] + (_renamed(rest, RESNET) if ".resnets." in key else rest)] = tensor
    return found


def _vae(pipe: DiffusionPipeline) -> State:
    found = {}
    for key, tensor in pipe.vae.state_dict().items():
        name = _renamed(key, VAE)
        is_conv = ".attn_1." in name and name.endswith("weight") and ".norm." not in name
        found[name] = tensor[:, :, None, None] if is_conv else tensor
    return found


def _encoders(pipe: DiffusionPipeline) -> State:
    """Each text encoder in the naming and at the place that the file of its family has for it."""
    first, second, third = (getattr(pipe, name, None) for name in ("text_encoder", "text_encoder_2", "text_encoder_3"))
    if hasattr(pipe, "transformer"):
        clips = {"clip_l": first.text_model, "clip_g": second}
        found = {"t5xxl": third} if third is not None else {}
        state = {}
        for name, model in (clips | found).items():
            own = _prefixed("text_model.", model.state_dict()) if name == "clip_l" else model.state_dict()
            state |= _prefixed(f"text_encoders.{name}.transformer.", own)
        return state
    if first is None:  # the refiner of XL
        return _prefixed("conditioner.embedders.0.model.", text_to_openai(second.state_dict()))
    if second is not None:
        return _prefixed("conditioner.embedders.0.transformer.text_model.", first.state_dict()) | _prefixed(
            "conditioner.embedders.1.model.", text_to_openai(second.state_dict())
        )
    if pipe.tokenizer.pad_token_id == 0:  # Stable Diffusion 2: OpenCLIP's tower
        whole = _prefixed("text_model.", first.state_dict())
        return _prefixed("cond_stage_model.model.", text_to_openai(whole))
    return _prefixed("cond_stage_model.transformer.text_model.", first.state_dict())


def _swapped(tensor: Tensor) -> Tensor:
    """Scale and shift the other way round."""
    return torch.cat(tensor.chunk(2)[::-1])


def _joined(state: State, prefix: str, parts: tuple[str, ...], kind: str) -> Tensor:
    return torch.cat([state[f"{prefix}{part}.{kind}"] for part in parts])


def _sd3(state: State) -> State:
    found, last = {}, max(int(key.split(".")[1]) for key in state if key.startswith("transformer_blocks."))
    for key, tensor in state.items():
        if not any(part in key for part in (".to_q.", ".to_k.", ".to_v.", ".add_q_", ".add_k_", ".add_v_")):
            turned = key.startswith(("norm_out.", f"transformer_blocks.{last}.norm1_context."))
            found[_renamed(key, SD3)] = _swapped(tensor) if turned else tensor
    for block in range(last + 1):
        for kind in ("weight", "bias"):
            for place, parts in (
                ("x_block", ("to_q", "to_k", "to_v")),
                ("context_block", ("add_q_proj", "add_k_proj", "add_v_proj")),
            ):
                joined = _joined(state, f"transformer_blocks.{block}.attn.", parts, kind)
                found[f"joint_blocks.{block}.{place}.attn.qkv.{kind}"] = joined
    return found


def _flux(state: State) -> State:
    found = {}
    for key, tensor in state.items():
        place, _, rest = key.partition(".")
        number, _, rest = rest.partition(".")
        if place == "transformer_blocks":
            if (
                "to_q" not in rest
                and "to_k" not in rest
                and "to_v" not in rest
                and "add_" not in rest.split(".")[1][:4]
            ):
                found[f"double_blocks.{number}.{_renamed(rest, FLUX_DOUBLE)}"] = tensor
        elif place == "single_transformer_blocks":
            if not rest.startswith(("attn.to_", "proj_mlp")):
                found[f"single_blocks.{number}.{_renamed(rest, FLUX_SINGLE)}"] = tensor
        elif place == "proj_out":
            found[f"final_layer.linear.{key.split('.')[-1]}"] = tensor
        else:
            found[_renamed(key, FLUX)] = _swapped(tensor) if key.startswith("norm_out.") else tensor
    for block in {key.split(".")[1] for key in state if key.startswith("transformer_blocks.")}:
        for kind in ("weight", "bias"):
            own = f"transformer_blocks.{block}.attn."
            images = _joined(state, own, ("to_q", "to_k", "to_v"), kind)
            texts = _joined(state, own, ("add_q_proj", "add_k_proj", "add_v_proj"), kind)
            found[f"double_blocks.{block}.img_attn.qkv.{kind}"] = images
            found[f"double_blocks.{block}.txt_attn.qkv.{kind}"] = texts
    for block in {key.split(".")[1] for key in state if key.startswith("single_transformer_blocks.")}:
        for kind in ("weight", "bias"):
            parts = ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
            joined = _joined(state, f"single_transformer_blocks.{block}.", parts, kind)
            found[f"single_blocks.{block}.linear1.{kind}"] = joined
    return found
