"""The comparison through gradio's HTTP API: /compare, described in docs/app.md."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from app.models import Models
from app.posted import ARGUMENTS, given
from app.previews import data_url
from app.request import check_request
from app.run import Run, Track, compare, start_run
from app.settings import Settings


def answer_of(run: Run) -> dict[str, Any]:
    """A run as plain data; `state` is waiting, drawing or done."""
    state = "waiting" if run.before is not None else "done" if run.is_over else "drawing"
    return {
        "state": state,
        "before": run.before or 0,
        "settings": run.request.as_dict(),
        "judge": run.judge,
        "sentences": [
            {"text": s.text, "tokens": [s.first, s.last], "names": [thing.name for thing in s.things]}
            for s in run.sentences
        ],
        "encoders": {track.name: _encoder(track, with_pictures=run.is_over) for track in run.tracks},
    }


def _encoder(track: Track, *, with_pictures: bool) -> dict[str, Any]:
    pictures = [
        {
            "seed": picture.seed,
            "seconds": round(picture.seconds, 3),
            "verdicts": [
                {"mark": v.mark, "score": v.score, "found": v.found, "reason": v.reason} for v in picture.verdicts
            ],
            "late_detail": picture.score.late,
            "by_quarter": list(picture.score.quarters),
            "png": data_url(picture.image) if with_pictures else None,
        }
        for picture in track.pictures
    ]
    about = {"window": track.window, "state": track.state, "step": track.step, "fault": track.fault}
    return about | {"pictures": pictures}


def compare_endpoint(models: Models, settings: Settings) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The function behind /compare."""

    async def compare_prompt(
        prompt: str,
        seed: int = 0,
        seeds: int = 1,
        steps: int | None = None,
        guidance: float | None = None,
        negative: str = "",
        encoders: list[str] | None = None,
        side: int | None = None,
        request: gr.Request | None = None,
    ) -> dict:  # gradio reads this as the type of one answer
        """Draw one prompt with several encoders; the last answer holds the pictures as PNG data addresses."""
        values = (prompt, seed, seeds, steps, guidance, negative, encoders, side)
        try:
            raw = given(dict(zip(ARGUMENTS, values, strict=True)))
            run = start_run(check_request(raw, settings), models, request)
            async for state in compare(run, models):
                yield answer_of(state)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return compare_prompt
