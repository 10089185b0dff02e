"""Judges: is a sentence in a picture? The embedded world's checker, dual encoders, models that answer questions."""

from debias_sd.measure.judges.load import load_judge
from debias_sd.measure.judges.verdict import Judge, Thresholds, Verdict

__all__ = ["Judge", "Thresholds", "Verdict", "load_judge"]
