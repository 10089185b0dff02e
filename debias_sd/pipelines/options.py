"""What a user sets on a pipeline: options of `load_debias_pipeline`, guidance and negative prompt of a call, xformers.

diffusers passes over an option that it does not know with a line in its log; here it is an error, with the nearest
name. It also passes over a negative prompt without a word where nothing is guided by it (0.42): FLUX reads one only
under `true_cfg_scale` above 1, the other families only under `guidance_scale` above 1. FLUX's `guidance_scale` is a
number that the distilled FLUX.1-dev reads (3.5), and FLUX.1-schnell does not.
"""

import difflib
import importlib.util
import inspect
from typing import Any  # of pipelines: type checkers see diffusers' own class as a placeholder

import torch

OWN = ("encoder", "encoder_2", "torch_dtype", "min_positions", "xformers")
HUB = ("token", "revision", "cache_dir", "local_files_only", "force_download")
# What diffusers' from_pretrained and from_single_file (0.42) read beside the parts of a pipeline.
_EVERYWHERE = (*HUB, "proxies", "torch_dtype", "dtype", "disable_mmap")
FROM_PRETRAINED = (
    *_EVERYWHERE, "custom_pipeline", "custom_revision", "provider", "sess_options", "provider_options", "device_map",
    "max_memory", "offload_folder", "offload_state_dict", "low_cpu_mem_usage", "variant", "use_safetensors", "use_onnx",
    "load_connected_pipeline", "quantization_config", "use_flashpack", "trust_remote_code",
)  # fmt: skip
FROM_SINGLE_FILE = (
    *_EVERYWHERE, "config", "original_config", "original_config_file", "scaling_factor", "load_safety_checker",
    "scheduler_type", "prediction_type",
)  # fmt: skip


def check_own(options: dict[str, object], dtype: object) -> None:
    """Raise ValueError for misspelt names of the loader's own options, and for values that are not dtypes."""
    for name in options:
        close = difflib.get_close_matches(name, OWN, n=1, cutoff=0.8)
        if close:
            raise _unknown(name, close)
    found = list(dtype.values()) if isinstance(dtype, dict) else [dtype or torch.float32]
    for one in found:
        if one not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise ValueError(
                f"torch_dtype is {one!r} but must be torch.float32, torch.float16 or torch.bfloat16; give one, or "
                "load quantised parts with diffusers and give them as options."
            )


def check_known(options: dict[str, object], known: tuple[str, ...], *, kind: type | None) -> None:
    """Raise ValueError for an option that is neither among `known`, diffusers' own, nor a part or setting of `kind`.

    Of a custom pipeline (None) the parts are not known before its code has run: then only names that are nearly one of
    diffusers' are refused.
    """
    parts = () if kind is None else tuple(inspect.signature(kind).parameters)
    for name in options:
        if name not in (*known, *parts):
            close = difflib.get_close_matches(name, (*OWN, *known, *parts), n=1, cutoff=0.8 if kind is None else 0.6)
            if close or kind is not None:
                raise _unknown(name, close, kind)


def hub_options(options: dict[str, object]) -> dict[str, object]:
    """Return those of `options` that say where and how the hub's files are found."""
    return {name: options[name] for name in HUB if name in options}


def _unknown(name: str, close: list[str], kind: type | None = None) -> ValueError:
    where = "" if kind is None or close else f" or a component of {kind.__name__}"
    then = f"did you mean {close[0]}?" if close else "leave it out."
    return ValueError(f"{name} is not an option of load_debias_pipeline(){where}; {then}")


def default_guidance(pipe: Any) -> float:
    """Return the `guidance_scale` that a call of `pipe` has by default: 7.5 for Stable Diffusion 1.x, 3.5 for FLUX."""
    return float(_takes(pipe)["guidance_scale"].default)


def reads_guidance(pipe: Any) -> bool:
    """Return whether `guidance_scale` changes the picture: not in FLUX.1-schnell, which was distilled without it."""
    return "true_cfg_scale" not in _takes(pipe) or bool(pipe.components["transformer"].config.guidance_embeds)


def check_guidance(pipe: Any, *, scale: float, true_scale: float | None = None, negative: str = "") -> None:
    """Raise ValueError where `pipe` would not use the negative prompt, or `true_cfg_scale`, without a word."""
    kind, takes = type(pipe).__name__, _takes(pipe)
    if "true_cfg_scale" not in takes:
        if true_scale is not None:
            raise ValueError(f"true_cfg_scale is for FLUX and {kind} does not take it; leave it out.")
        if negative and "negative_prompt" not in takes:
            raise ValueError(f"{kind} does not take a negative prompt; leave it out.")
        if negative and not (scale > 1 and _is_guided(pipe)):
            why = f"at guidance_scale {scale:g}" if _is_guided(pipe) else "because its UNet was distilled"
            raise ValueError(f"{kind} does not use a negative prompt {why}; leave it out{_above(pipe)}.")
    elif negative and (true_scale is None or true_scale <= 1):
        given = "without true_cfg_scale" if true_scale is None else f"at true_cfg_scale {true_scale:g}"
        raise ValueError(
            f"{kind} does not use a negative prompt {given}; give true_cfg_scale a number above 1, such as 4, which "
            "takes twice the time, or leave the negative prompt out."
        )
    elif true_scale is not None and not negative:
        raise ValueError("true_cfg_scale does nothing without a negative prompt; give both or leave it out.")


def _takes(pipe: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(type(pipe).__call__).parameters)


def _is_guided(pipe: Any) -> bool:
    """Return whether a UNet is guided by a negative prompt: one with an input for the scale (LCM) is not."""
    unet = pipe.components.get("unet")
    return unet is None or getattr(unet.config, "time_cond_proj_dim", None) is None


def _above(pipe: Any) -> str:
    return ", or give guidance_scale a number above 1" if _is_guided(pipe) else ""


def check_xformers() -> None:
    """Raise ValueError when it is not installed, or there is no CUDA device: it has no kernels for anything else."""
    if importlib.util.find_spec("xformers") is None:
        raise ValueError("xformers is not installed; install it (pip install 'debias-sd[xformers]') or leave it out.")
    if not torch.cuda.is_available():
        raise ValueError("xformers needs a CUDA device and torch finds none here; leave xformers out.")


def use_xformers(pipe: Any) -> None:
    """Let `pipe` use it; ValueError when it is built for another torch, as each of its releases is for one."""
    try:
        pipe.enable_xformers_memory_efficient_attention()
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"xformers is installed and cannot run here ({type(error).__name__}), for each of its releases is for one "
            "version of torch; install the one for this torch, or leave xformers out (torch's own is as exact)."
        ) from error
