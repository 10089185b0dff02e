"""The options of `load_debias_pipeline`: those of the loader, of diffusers, and of the pipeline itself.

diffusers passes over a name that it does not know with a line in its log; here it is an error, with the nearest name.
"""

import difflib
import inspect

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
    diffusers' are told.
    """
    parts = () if kind is None else tuple(inspect.signature(kind.__init__).parameters)[1:]
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
