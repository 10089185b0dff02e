"""Tables of judged pictures: a judge that may never say drawn has measured no share of what was drawn."""

import pytest

from debias_sd.report import Report
from debias_sd.reporting.judged import picture_tables
from debias_sd.reporting.tables import Entry

SCORES = {
    "late_detail": 0.0, "late_detail_interval": [0.0, 0.0], "unsure": 60.0, "late_score": 30.9,
    "late_score_interval": [28.0, 33.5], "by_quarter": [0.0] * 4, "late_judged": 36,
}  # fmt: skip


@pytest.mark.parametrize("drawn", [None, 0.0, 0.7])
def test_a_share_of_nothing_is_said_to_be_none(drawn):
    about = {"meaning": "a probability", "thresholds": {"drawn": drawn, "missing": 0.2, "source": "world, 12 pictures"}}
    extra = {"judges": {"clip:x": about}, "differences_of_pictures": {}, "agreement": {}}
    result = {"judges": {"clip:x": SCORES}}
    report = Report("fidelity-judged", {"texts_sha256": "0", "seeds": [0]}, {"a": result}, extra=extra)
    (table,) = picture_tables([Entry("a", "a", report, result)])
    assert ("0 is no measurement, only the mean scores are one" in table.note) == (drawn is None)
    assert table.note.startswith("A probability. Thresholds: world, 12 pictures.")
