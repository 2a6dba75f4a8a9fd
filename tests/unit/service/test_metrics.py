"""The metrics page: what Prometheus can read, from many threads at once."""

from __future__ import annotations

import re
import threading

import pytest

from tinsmith.service.metrics import BUCKETS, DECLARED, Gauge, Registry

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [0-9.e+-]+')


def samples(page: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            assert LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name not in found, "a series must be given once"
            found[name] = float(value)
    return found


def test_counts_and_gauges_are_on_the_page() -> None:
    registry = Registry()
    registry.count("tinsmith_ops_total", kind="sample", outcome="finished")
    registry.count("tinsmith_ops_total", 2, outcome="finished", kind="sample")
    registry.count("tinsmith_tokens_trained_total", 512)
    page = registry.page([Gauge("tinsmith_models", 3, {"state": "parked"})])
    found = samples(page)
    assert found['tinsmith_ops_total{kind="sample",outcome="finished"}'] == 3
    assert found["tinsmith_tokens_trained_total"] == 512
    assert found['tinsmith_models{state="parked"}'] == 3
    assert found["tinsmith_decode_steps_total"] == 0, "a counter exists before its first event"
    assert "# TYPE tinsmith_ops_total counter" in page
    assert page.endswith("\n")


def test_a_histogram_is_cumulative() -> None:
    registry = Registry()
    for seconds in (0.0005, 0.02, 0.02, 1000.0):
        registry.observe("tinsmith_op_seconds", seconds, kind="optim")
    found = samples(registry.page())
    name = "tinsmith_op_seconds_bucket"
    counts = [found[f'{name}{{kind="optim",le="{bound:g}"}}'] for bound in BUCKETS]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 3
    assert found[f'{name}{{kind="optim",le="+Inf"}}'] == 4
    assert found['tinsmith_op_seconds_count{kind="optim"}'] == 4
    assert found['tinsmith_op_seconds_sum{kind="optim"}'] == pytest.approx(1000.0405)


def test_a_bound_belongs_to_its_bucket() -> None:
    registry = Registry()
    registry.observe("tinsmith_op_seconds", 0.01, kind="optim")
    assert samples(registry.page())['tinsmith_op_seconds_bucket{kind="optim",le="0.01"}'] == 1


def test_label_values_are_escaped() -> None:
    registry = Registry()
    registry.count("tinsmith_failed_requests_total", route='a"b\\c\nd')
    assert 'route="a\\"b\\\\c\\nd"' in registry.page()


def test_only_what_is_declared_exists() -> None:
    registry = Registry()
    with pytest.raises(KeyError):
        registry.count("tinsmith_typo_total")
    with pytest.raises(KeyError):
        registry.count("tinsmith_ops_total", kind="sample")
    with pytest.raises(AssertionError):
        registry.count("tinsmith_op_seconds", kind="sample")


def test_threads_lose_nothing() -> None:
    registry = Registry()

    def work() -> None:
        for _ in range(5000):
            registry.count("tinsmith_decode_steps_total")
            with registry.timed("tinsmith_op_seconds", kind="x"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.value("tinsmith_decode_steps_total") == 20_000
    assert samples(registry.page())['tinsmith_op_seconds_count{kind="x"}'] == 20_000


def test_every_metric_says_what_it_is() -> None:
    for name, declared in DECLARED.items():
        assert name.startswith("tinsmith_")
        assert declared.help.endswith(".")
        assert name.endswith("_total") == (declared.kind == "counter"), name
