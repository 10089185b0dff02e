"""What a pipeline's call does with guidance and a negative prompt, read from its signature and its denoiser's config.

diffusers (0.42) passes over a negative prompt without a word where nothing is guided by it: FLUX reads one only under
`true_cfg_scale` above 1, the other families only under `guidance_scale` above 1. FLUX's `guidance_scale` is a number
that the distilled FLUX.1-dev reads (3.5), and FLUX.1-schnell does not.
"""

import inspect


def default_guidance(pipe: object) -> float:
    """Return the `guidance_scale` that a call of `pipe` has by default: 7.5 for Stable Diffusion 1.x, 3.5 for FLUX."""
    return float(_takes(pipe)["guidance_scale"].default)


def reads_guidance(pipe: object) -> bool:
    """Return whether `guidance_scale` changes the picture: not in FLUX.1-schnell, which was distilled without it."""
    return "true_cfg_scale" not in _takes(pipe) or bool(pipe.components["transformer"].config.guidance_embeds)


def check_guidance(pipe: object, *, scale: float, true_scale: float | None = None, negative: str = "") -> None:
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


def _takes(pipe: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(type(pipe).__call__).parameters)


def _is_guided(pipe: object) -> bool:
    """Return whether a UNet is guided by a negative prompt: one with an input for the scale (LCM) is not."""
    unet = pipe.components.get("unet")
    return unet is None or getattr(unet.config, "time_cond_proj_dim", None) is None


def _above(pipe: object) -> str:
    return ", or give guidance_scale a number above 1" if _is_guided(pipe) else ""
