"""How the page looks: its palette, a theme with fonts of the reader's own machine, style sheet, scripts, pictures."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

if TYPE_CHECKING:
    from gradio.themes import Base


# By name, in the light and in the dark mode; every pair of text and ground has a contrast of 4.5 : 1 or more.
PALETTE = {
    "ink": ("#1f2328", "#e6edf3"), "soft": ("#57606a", "#a4aeb9"), "paper": ("#ffffff", "#12161c"),
    "tint": ("#f6f8fa", "#1b2129"), "rule": ("#d0d7de", "#39424e"), "edge": ("#ffffff", "#ffffff"),
    "w1": ("#0b5c75", "#9be3f5"), "w1-back": ("#d9f0f7", "#0c3440"),
    "w2": ("#6b4a00", "#f5d77a"), "w2-back": ("#fbeec3", "#3b2f08"),
    "w3": ("#6a3d9a", "#d9bcff"), "w3-back": ("#eee2fa", "#33204b"),
    "good": ("#116329", "#7ee2a0"), "good-back": ("#dcf5e3", "#0f331d"),
    "bad": ("#a40e26", "#ffb1a8"), "bad-back": ("#fde3e1", "#451216"),
    "mid": ("#7a4d00", "#f2cc60"), "mid-back": ("#fdf0cd", "#3b2f08"),
    "glow": ("#bf3989", "#ff7ac6"), "fill": ("#0b5c75", "#58b9d1"),
    "veil": ("#0b0f14cc", "#000000cc"), "button": ("#0b5c75", "#0b6c8a"), "button-hover": ("#094a5f", "#0e7fa1"),
}  # fmt: skip
SERIES = (  # of lines in a plot, one per encoder
    ("#0b5c75", "#b35900", "#6a3d9a", "#1a7f37", "#a40e26", "#57606a"),
    ("#58b9d1", "#f2a65a", "#c7a3ff", "#7ee2a0", "#ffb1a8", "#a4aeb9"),
)


def style_sheet() -> str:
    """The style sheet with the palette as its custom properties."""
    day, night = (" ".join(f"--{name}: {both[dark]};" for name, both in PALETTE.items()) for dark in (0, 1))
    modes = f".gradio-container {{ {day} }}\n.dark .gradio-container, .gradio-container.dark {{ {night} }}\n"
    return modes + read_asset("style.css")


def read_asset(name: str) -> str:
    """The text of a file beside this one: style.css or one of the scripts."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


# Gradio's container itself: a style sheet of the app's reaches only what stands in it.
_MAIN = (
    ".gradio-container > .main { max-width: 1400px !important; padding: 12px 24px !important; } "
    "@media (max-width: 640px) { .gradio-container > .main { padding: 10px 14px !important; } }"
)


def theme() -> Base:
    """Gradio's plain theme without its web fonts."""
    import gradio as gr  # here: what is taken along needs the style sheet without it

    (button, button_dark), (hover, hover_dark) = PALETTE["button"], PALETTE["button-hover"]
    return gr.themes.Default(
        primary_hue="cyan",
        neutral_hue="slate",
        font=[gr.themes.Font(name) for name in _SANS],
        font_mono=[gr.themes.Font(name) for name in _MONO],
    ).set(
        button_primary_background_fill=button,
        button_primary_background_fill_hover=hover,
        button_primary_background_fill_dark=button_dark,
        button_primary_background_fill_hover_dark=hover_dark,
        button_primary_text_color="white",
        button_primary_text_color_dark="white",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        slider_color=button,
        slider_color_dark=button_dark,
        checkbox_background_color_selected=button,
        checkbox_background_color_selected_dark=button_dark,
        checkbox_border_color_selected=button,
        checkbox_border_color_selected_dark=button_dark,
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
    )


def head() -> str:
    """What goes into the page's head: the scripts, inline, and the container's own style."""
    scripts = "".join(f"<script>{read_asset(name)}</script>" for name in ("highlight.js", "closer.js", "page.js"))
    return f"<style>{_MAIN}</style>{scripts}"


_SMALL = 64  # pixels: up to here the VAE decodes in milliseconds, and a preview is the real thing
_PREVIEW_SIDE = 128
# What one latent channel of Stable Diffusion 1.x adds to red, green and blue: a linear fit that public UIs use.
_SD1 = ((0.298, 0.207, 0.208), (0.187, 0.286, 0.173), (-0.158, 0.189, 0.264), (-0.184, -0.271, -0.473))


def data_url(image: np.ndarray) -> str:
    """A picture, uint8 [height, width, 3], as a PNG data address."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, format="PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def thumb(image: np.ndarray) -> np.ndarray:
    """`image` at most 128 pixels wide and high; the embedded world's as it is."""
    small = Image.fromarray(image)
    small.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE))
    return np.asarray(small)


@torch.inference_mode()
def preview_of(pipe: object, latents: torch.Tensor) -> np.ndarray | None:
    """A small picture of `latents` [1, channels, h, w] in the middle of a run; None where none is cheap."""
    if latents.ndim != 4 or not bool(torch.isfinite(latents).all()):
        return None
    if latents.shape[-1] * pipe.vae_scale_factor <= _SMALL:
        pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample[0]
        pixels = (pixels.float() / 2 + 0.5).permute(1, 2, 0)
    elif latents.shape[1] == 4:
        weights = torch.tensor(_SD1, dtype=torch.float32, device=latents.device)
        pixels = torch.einsum("chw,cr->hwr", latents[0].float(), weights) / 2 + 0.5
    else:
        return None
    array = np.rint(255 * pixels.clamp(0, 1).cpu().numpy()).astype(np.uint8)
    image = Image.fromarray(array)
    image.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE))
    return np.asarray(image)
