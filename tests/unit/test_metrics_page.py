"""The page of metrics says what the table of metrics says."""

from __future__ import annotations

from scripts import metrics_page
from tinsmith.records.metrics import METRICS, TABLE, Metric


def test_the_page_is_up_to_date() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run scripts/metrics_page.py"


def test_every_metric_is_on_the_page_once() -> None:
    lines = metrics_page.page().splitlines()
    for name in METRICS:
        assert sum(line.startswith(f"| `{name}` |") for line in lines) == 1, name


def test_a_range_has_advice_and_the_page_tells_both() -> None:
    for metric in TABLE:
        ranged = (metric.low, metric.high, metric.least_of_first) != (None, None, None)
        assert ranged == bool(metric.advice), metric.name
        assert not metric.share_of or metric.name in metric.share_of
    ratio = Metric("x", "", "", low=0.9, high=1.1, advice="look")
    assert metrics_page.healthy(ratio) == "at least 0.9 and at most 1.1; else: look"
    assert metrics_page.healthy(Metric("x", "", "")) == ""
