"""How the page looks: a theme with fonts of the reader's own machine, the style sheet, the highlighting script."""

from __future__ import annotations

import gradio as gr

from app.assets import read_asset

_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


# Gradio's container itself: a style sheet of the app's reaches only what stands in it.
_NARROW = "@media (max-width: 640px) { .gradio-container > .main { padding: 12px 14px !important; } }"


def theme() -> gr.themes.Base:
    """Gradio's plain theme without its web fonts."""
    return gr.themes.Default(
        primary_hue="cyan",
        neutral_hue="slate",
        font=[gr.themes.Font(name) for name in _SANS],
        font_mono=[gr.themes.Font(name) for name in _MONO],
    ).set(
        button_primary_background_fill="#0b5c75",
        button_primary_background_fill_hover="#094a5f",
        button_primary_background_fill_dark="#0b6c8a",
        button_primary_background_fill_hover_dark="#0e7fa1",
        button_primary_text_color="white",
        button_primary_text_color_dark="white",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
    )


def head() -> str:
    """What goes into the page's head: the scripts, inline, and the container's own style."""
    names = ("page.js", "rulers.js", "stale.js", "votes.js")
    scripts = "".join(f"<script>{read_asset(name)}</script>" for name in names)
    return f"<style>{_NARROW}</style>{scripts}"
