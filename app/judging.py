"""The operator's judge (`--judge`): pictures of a real pipeline against the sentences of their prompt.

The embedded world has its own checker (`app.scores`); real pictures are judged by a model
(`debias_sd.measure.judges`), whose marks are as good as that model and its thresholds. A sentence is what the score
counts here, not a named thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from app.paths import name_of, names_only
from app.scores import Score, Verdict
from app.settings import Settings
from debias_sd.comparison import Sentence
from debias_sd.measure.judges import Judge, load_judge
from debias_sd.measure.late_details import half_of

NOT_JUDGED = "not judged"


def load_for(settings: Settings) -> Judge | None:
    """The judge that the operator named, or None; ValueError with one sentence."""
    if settings.judge is None:
        return None
    import torch

    judge = load_judge(settings.judge, device=settings.device, dtype=getattr(torch, settings.dtype))
    if settings.judge_report is None:
        return judge
    from debias_sd.measure.judges.calibration import read_thresholds

    thresholds = read_thresholds([settings.judge_report], judge)
    if thresholds is None:
        raise ValueError(
            f"report {settings.judge_report} is not about judge {judge.name}; calibrate it: debias-sd calibrate."
        )
    return dataclasses.replace(judge, thresholds=thresholds)


def verdicts_by(judge: Judge, image: np.ndarray, sentences: Sequence[Sentence], *, window: int) -> tuple[Verdict, ...]:
    """A verdict for every sentence; what is missing and stands behind `window` was not read. Faults are the judge's."""
    found = judge.judge(Image.fromarray(image), [sentence.text for sentence in sentences])
    return tuple(
        Verdict(NOT_JUDGED, None, verdict.reason)
        if verdict.reason
        else Verdict(
            "not read" if verdict.mark == "missing" and sentence.first >= window - 1 else verdict.mark,
            verdict.score,
            "",
        )
        for sentence, verdict in zip(sentences, found, strict=True)
    )


def unjudged_by(fault: str, sentences: Sequence[Sentence]) -> tuple[Verdict, ...]:
    """The verdicts where the judge itself failed: the picture is there all the same."""
    return tuple(Verdict(NOT_JUDGED, None, fault) for _ in sentences)


def score_by(verdicts: Sequence[Verdict], *, can_say_drawn: bool = True) -> Score:
    """Shares of the judged sentences that are drawn, in percent: late details, quarters of the details, all.

    Details are the sentences behind the first, late ones stand in their second half. An unsure sentence counts as not
    drawn. A judge whose thresholds never let it say drawn has no shares: 0 percent would be said of the pictures, and
    is the judge's.
    """
    if not can_say_drawn:
        return Score(None, (None,) * 4, None)
    details = len(verdicts) - 1
    judged = [(index, v.mark == "drawn") for index, v in enumerate(verdicts) if v.mark != NOT_JUDGED]
    behind = [(index, drawn) for index, drawn in judged if index]

    def share(values: list[bool]) -> float | None:
        return 100 * sum(values) / len(values) if values else None

    return Score(
        late=share([drawn for index, drawn in behind if half_of(index, details) == 1]),
        quarters=tuple(
            share([drawn for index, drawn in behind if int(4 * (index - 0.5) / details) == quarter])
            for quarter in range(4)
        ),
        drawn=share([drawn for _, drawn in judged]),
    )


def about_judge(judge: Judge | None, settings: Settings) -> dict[str, Any] | None:
    """What the page, the API and all that is taken along say of the judge.

    Its own name is that of its folder and the one above; a page that others reach leaves the second out.
    """
    if judge is None:
        return None
    kind, _, source = judge.name.partition(":")
    name = names_only(judge.name) if settings.is_private else f"{kind}:{name_of(source)}"
    thresholds = dataclasses.asdict(judge.thresholds)
    thresholds["source"] = names_only(thresholds["source"], settings.sources)
    return {"name": name, "meaning": judge.meaning, "thresholds": thresholds}
