"""Stock diffusers pipelines with longer text encoders.

No pipeline class of our own: the new pipeline is a shallow copy of the base pipeline, with each text encoder and its
tokenizer swapped as a pair. `from_pipe` is not used: without a dtype it makes shared fp16 modules fp32. Pads are the
base pipeline's own (end token in SD 1.x): its denoiser attends to padded states and was trained with them. A second
CLIP encoder must read as many tokens as the first, because SDXL and Stable Diffusion 3 join their states.
"""

import copy
from pathlib import Path
from typing import Any  # of pipelines: type checkers see diffusers' own class as a placeholder that cannot be called

import torch
from diffusers import DiffusionPipeline
from diffusers.utils.logging import disable_progress_bar

from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import EMBEDDED, SECOND, find_encoder_folder, read_config, read_tokenizer
from debias_sd.pipelines.base import Base, find_base
from debias_sd.pipelines.families import Family, Slot, family_of_pipeline
from debias_sd.pipelines.fit import (
    check_layers,
    check_pair,
    check_plain,
    check_vocabulary,
    check_width,
    sketch,
    warn_of_replaced,
)
from debias_sd.pipelines.options import check_own, check_xformers, hub_options, use_xformers
from debias_sd.pipelines.slots import ORIGIN, Place, fill_given, fill_stretched, own_parts

POSITIONS = 248
STRETCHED = "stretched"
Source = str | Path | TextEncoder  # "stretched", or an encoder


def load_debias_pipeline(
    base: str | Path | None = None,
    encoder: Source | None = None,
    *,
    encoder_2: Source | None = None,
    torch_dtype: torch.dtype | dict[str, torch.dtype] | None = None,
    min_positions: int = POSITIONS,
    xformers: bool = False,
    **options: object,
) -> Any:
    """Return the base pipeline with text encoders that read 248 tokens.

    Args:
        base: folder, hub id or single file of a pipeline of Stable Diffusion 1.x, 2.x, XL with its refiner, 3 or FLUX;
            None is the embedded one.
        encoder: "debias" (also None, with the embedded base), "long-clip", a folder, a hub id or a `TextEncoder`;
            "stretched" is the base's own with 248 positions and no training; "base" leaves the base pipeline as it is.
            The SDXL refiner has no first encoder: leave it out.
        encoder_2: the second CLIP encoder of SDXL and Stable Diffusion 3 likewise; None is the one in the folder
            `encoder_2` of `encoder`, as `debias-sd lengthen` writes it, else "stretched".
        torch_dtype: of all models, float32 by default; `dtype` in `options` is the same.
        min_positions: the shortest encoder to accept.
        xformers: use its attention in the UNet.
        options: for diffusers' `from_pretrained` or, of a single file, `from_single_file`: `variant` (found out in a
            folder that has only one), `config`, parts; other names are refused. `token`, `revision`, `cache_dir`,
            `local_files_only` and `force_download` are for base and encoders alike, `subfolder` is that of the encoders
            in their folder or repository; for others of each, `load_encoder()` takes them too.

    At its peak it holds one text encoder more than diffusers would. Raises ValueError with one sentence when a part is
    missing or does not fit.
    """
    if encoder is None and base is None:
        encoder = "debias"
    subfolder = options.pop("subfolder", None)
    check_own(options, options.get("dtype", torch_dtype))
    if xformers:
        check_xformers()
    keeps = isinstance(encoder, str | Path) and str(encoder) == "base"
    if keeps and encoder_2 is not None:
        raise ValueError("encoder='base' leaves the pipeline as it is, so encoder_2 has no place; give an encoder.")
    where = hub_options(options) | {"subfolder": subfolder}
    named = {"text_encoder": None if keeps else encoder, "text_encoder_2": encoder_2}
    sources = {slot: _found(source, **where) for slot, source in named.items()}
    if subfolder is not None and not any(_is_folder(source) for source in named.values()):
        raise ValueError("subfolder is that of an encoder in a folder or on the hub, and none is given; leave it out.")
    found = find_base(base, {"dtype": torch_dtype or torch.float32} | options)
    if found.family is not None and not keeps:
        _check_before_loading(found, _wanted(found.family, sources, name=found.name))
    pipe = found.load()
    family = family_of_pipeline(pipe)
    if keeps:
        for slot in family.clip_slots:
            check_pair(slot, pipe.components, name=f"base {found.name}")
            pipe.register_modules(**own_parts(slot, pipe.components, shared=options.keys()))
    else:
        wanted = _wanted(family, sources, name=found.name)
        ours = frozenset(pipe.components) - options.keys()
        variant = options.get("variant")
        pipe = _swapped(pipe, wanted, ours=ours, min_positions=min_positions, variant=variant)
    if xformers:
        use_xformers(pipe)
    return pipe


def with_text_encoder(
    pipe: Any,
    encoder: Source | None = None,
    *,
    encoder_2: Source | None = None,
    min_positions: int = POSITIONS,
) -> Any:
    """Return a new pipeline of the same class that shares all parts of `pipe` but text encoders, tokenizers, scheduler.

    `pipe` is left as it is, and so are the encoders given. Each encoder takes over the dtype and device of the one it
    replaces; weights are shared where nothing else is needed, and `fuse_lora()` on one pipeline writes into them:
    docs/pipelines.md says what to copy before. `encoder` and `encoder_2` are as in `load_debias_pipeline`, without
    "base", which is `pipe` as it is. Device offloading and compiling are for the result, not before.
    Raises ValueError when `pipe` is of another family or an encoder does not fit it.
    """
    name = type(pipe).__name__
    family = family_of_pipeline(pipe)
    _check_in_place(pipe)
    if isinstance(encoder, str | Path) and str(encoder) == "base":
        raise ValueError(
            f"encoder is 'base', which is {name} as it is; use it itself, or give TextEncoder.load('base') for the "
            "embedded encoder of that name."
        )
    wanted = _wanted(family, {"text_encoder": _found(encoder), "text_encoder_2": _found(encoder_2)}, name=name)
    swapped = _swapped(pipe, wanted, ours=frozenset(), min_positions=min_positions)
    # A scheduler keeps the state of a run: two pipelines that share one cannot run side by side.
    swapped.register_modules(scheduler=copy.deepcopy(pipe.scheduler))
    return swapped


def hide_loading_bars() -> None:
    """Turn off diffusers' progress bars of loading, for commands whose standard error is one sentence."""
    disable_progress_bar()


def _found(source: Source | None, **where: object) -> Source | None:
    """Return `source` with a name, id or path as its local folder; `where` as for `find_encoder_folder`."""
    if source is None or isinstance(source, TextEncoder) or str(source) == STRETCHED:
        return source
    if not isinstance(source, str | Path):
        raise ValueError(
            f"an encoder is of type {type(source).__name__} but must be a folder, a Hub repo id or a TextEncoder, "
            "which has the tokenizer too; give one, or TextEncoder(model, tokenizer)."
        )
    return find_encoder_folder(source, **where)


def _second_of(source: Source | None) -> Source | None:
    """Return the second encoder of a folder that was lengthened for both slots of a pipeline, or None."""
    if isinstance(source, TextEncoder):
        return source.second
    return Path(source) / SECOND if _is_folder(source) and (Path(source) / SECOND / "config.json").is_file() else None


def _is_folder(source: Source | None) -> bool:
    return isinstance(source, str | Path) and str(source) not in (*EMBEDDED, STRETCHED)


def _wanted(family: Family, sources: dict[str, Source | None], *, name: str) -> dict[Slot, Source]:
    """Return what is to fill each CLIP slot; ValueError for a slot that the family does not have or nothing is for."""
    slots = {slot.encoder: slot for slot in family.clip_slots}
    if sources["text_encoder_2"] is not None and "text_encoder_2" not in slots:
        raise ValueError(f"encoder_2 is given and {family.name} has one CLIP text encoder; leave encoder_2 out.")
    if sources["text_encoder"] is not None and "text_encoder" not in slots:
        raise ValueError(
            f"encoder is given and {family.name} has only a second text encoder; leave encoder out, and give encoder_2 "
            "or have its own stretched."
        )
    if sources["text_encoder"] is None and "text_encoder" in slots:
        raise ValueError(
            f"no encoder is named for {name}; give encoder= a folder, a hub id, 'stretched' (its own, lengthened "
            "without training) or, while loading, 'base' (its own as it is)."
        )
    given = sources | {"text_encoder_2": sources["text_encoder_2"] or _second_of(sources["text_encoder"])}
    return {slot: given[encoder] or STRETCHED for encoder, slot in slots.items()}


def _check_before_loading(base: Base, wanted: dict[Slot, Source]) -> None:
    """Raise ValueError for what can be seen in small files: the base may be a download of gigabytes."""
    for slot, source in wanted.items():
        if str(source) == STRETCHED:
            continue
        twice = sorted({slot.encoder, slot.tokenizer} & base.options.keys())
        if twice:
            raise ValueError(f"{twice[0]} is given as an option and through encoder= too; give one of the two.")
        if isinstance(source, TextEncoder):
            given = source.model.config
            check_plain(source.model, name="the encoder")
        else:
            given = read_config(source)  # first: the tokenizer of another family would be called damaged
            read_tokenizer(source)
        width, layers = base.sizes_of(slot)
        if width is not None:
            check_width(slot, given.hidden_size, need=width)
        if layers is not None:
            check_layers(slot, given.num_hidden_layers, need=layers)


def _check_in_place(pipe: DiffusionPipeline) -> None:
    """Raise ValueError when hooks move the parts of `pipe` around, or adapters would be lost with its text encoder."""
    parts = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
    mapped = isinstance(pipe.hf_device_map, dict) and len(pipe.hf_device_map) > 1
    if mapped or pipe._maybe_raise_error_if_group_offload_active() or any(hasattr(part, "_hf_hook") for part in parts):
        raise ValueError(
            "the pipeline is offloaded already, so its parts are not in one place; swap the text encoder first and "
            "call enable_model_cpu_offload() on the result."
        )


def _swapped(
    pipe: DiffusionPipeline,
    wanted: dict[Slot, Source],
    *,
    ours: frozenset[str],
    min_positions: int,
    variant: str | None = None,
) -> DiffusionPipeline:
    """Return a shallow copy of `pipe` with `wanted` in its slots.

    `ours` names the components that no one else holds: they are freed or changed, and `pipe` itself with them.
    """
    name, new, positions = type(pipe).__name__, {}, POSITIONS
    result = pipe if ours else copy.copy(pipe)
    given = {slot: source for slot, source in wanted.items() if str(source) != STRETCHED}
    replaced = {}
    for slot, source in given.items():
        check_vocabulary(slot, pipe.components, name=name)
        _check_adapters(slot, pipe.components)
        place = Place.of(slot, pipe.components)
        is_own = getattr(pipe.components[slot.encoder].config, ORIGIN, "base") != "given"
        own = sketch(pipe.components[slot.encoder]) if is_own else {}
        if slot.encoder in ours:  # freed before the new one is loaded
            pipe.register_modules(**{slot.encoder: None})
        encoder = source if isinstance(source, TextEncoder) else TextEncoder.load(source, variant=variant)
        _check_positions(encoder.positions, min_positions=min_positions)
        if new and encoder.positions != positions:
            raise ValueError(
                f"encoder has {positions} positions and encoder_2 {encoder.positions}, but {name} joins their states; "
                "give two of one length."
            )
        positions = encoder.positions
        new[slot.encoder], new[slot.tokenizer] = fill_given(place, encoder)
        replaced[slot] = (own, encoder)
    for slot in wanted.keys() - given.keys():
        filled = fill_stretched(slot, pipe.components, positions=positions, in_place=slot.encoder in ours, name=name)
        new[slot.encoder], new[slot.tokenizer] = filled
    warn_of_replaced(replaced, name=name, base=getattr(pipe, "name_or_path", None))
    result.register_modules(**new)
    if "tokenizer_max_length" in vars(result):  # Stable Diffusion 3 and FLUX keep it from the first tokenizer
        result.tokenizer_max_length = positions
    return result


def _check_positions(positions: int, *, min_positions: int) -> None:
    if type(min_positions) is not int:
        raise ValueError(f"min_positions is {min_positions!r} but must be a whole number; give one, such as 77 or 248.")
    if positions < min_positions:
        raise ValueError(
            f"the encoder has {positions} positions but needs {min_positions}; lengthen it with stretch() or "
            "train it longer (editing max_position_embeddings in config.json does not lengthen it)."
        )


def _check_adapters(slot: Slot, components: dict[str, object]) -> None:
    adapters = getattr(components[slot.encoder], "peft_config", None)
    if adapters:
        raise ValueError(
            f"{slot.encoder} of the pipeline has the LoRA {sorted(adapters)[0]!r}, which the new encoder would not "
            "have; swap the text encoder first and call load_lora_weights() on the result."
        )
