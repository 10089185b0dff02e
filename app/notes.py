"""What the page says about its models and examples, a line each."""

from __future__ import annotations

from html import escape

from app.models import Models
from app.settings import Settings

_MARKS = (
    "✓ drawn, ◐ in part, ✕ missing, ? unsure, – not read (behind the window), · not judged. Late details: "
    "named in the prompt's second half. In brackets: 95 % interval over seeds."
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


def rulers_note(models: Models) -> str:
    """What the rulers count; and who else reads the prompt, which no ruler shows."""
    others = any("T5" in type(part).__name__ for part in models.base.components.values())
    also = " T5 reads the prompt too, in every panel alike; the rulers are those of CLIP." if others else ""
    return f"Tokens that each encoder reads; the start and the end token, two of each window, are not counted.{also}"


def examples_note(settings: Settings) -> str | None:
    """Where the examples come from, where that is not seen at once."""
    if settings.is_embedded:
        return None
    return "The long captions that come with the app have the form of the paper's figure, not its wording."
