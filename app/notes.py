"""What the page says about its models, a line each: who judges the pictures, and who else reads the prompt."""

from __future__ import annotations

from html import escape

from app.models import Models

_MARKS = (
    "✓ drawn, ✕ missing, ? unsure, – not read: behind the end of what the encoder reads. Late details: named in the "
    "prompt's second half."
)


def judged_by(models: Models) -> str:
    """Who says what is drawn, and what the marks mean; HTML."""
    if models.is_checked:
        return _MARKS
    about = models.about_judge
    if about is None:
        return (
            "Real pictures are not judged here; whoever starts the app can name a judge. Hover or focus a sentence to "
            "see where its words acted."
        )
    return (
        f"Judged by {escape(about['name'])}: {escape(about['meaning'])}; thresholds: "
        f"{escape(about['thresholds']['source'])}. {_MARKS}"
    )


def also_read_by(models: Models) -> str:
    """Text encoders beside CLIP, which no ruler shows; empty where there are none."""
    others = any("T5" in type(part).__name__ for part in models.base.components.values())
    return "T5 reads the prompt too, in every panel alike; the rulers are those of CLIP." if others else ""
