"""The operator's judge (`--judge`): pictures of a real pipeline against the sentences of their prompt.

The embedded world has its own checker (`app.scores`); real pictures are judged by a model
(`debias_sd.measure.judges`), whose marks are as good as that model and its thresholds. A sentence is what the score
counts here, not a named thing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from app.paths import name_of, names_only
from app.settings import Settings
from debias_sd.measure.judges import Judge, load_judge

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
