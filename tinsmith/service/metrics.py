"""Counters and histograms of this process, and their page in Prometheus' text format.

Anything in the service may count, from any thread, at the price of a dictionary entry:

    metrics.count("tinsmith_ops_total", kind="sample", outcome="finished")
    metrics.count("tinsmith_tokens_trained_total", 512)
    metrics.observe("tinsmith_op_seconds", 0.21, kind="optim")
    with metrics.timed("tinsmith_submit_seconds", kind="pass"): ...

A name must stand in DECLARED, with the labels it is given there. What can be read off the service at the
moment of asking (queues, models, memory) is no counter: it is a Gauge that the /metrics route collects.
Label values never come from clients, so the number of series is bounded.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[tuple[str, str], ...]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class Declared:
    kind: Kind
    labels: tuple[str, ...]
    help: str


DECLARED: dict[str, Declared] = {
    "tinsmith_requests_total": Declared(
        "counter", ("method", "route", "status"), "HTTP requests answered."
    ),
    "tinsmith_request_seconds": Declared(
        "histogram",
        ("route",),
        "From a request's first byte to its answer's last; polls wait long.",
    ),
    "tinsmith_received_bytes_total": Declared("counter", (), "Bytes of request bodies, as sent."),
    "tinsmith_refused_requests_total": Declared(
        "counter", ("reason",), "Requests refused before a route saw them: key, busy, slow or size."
    ),
    "tinsmith_failed_requests_total": Declared(
        "counter", ("route",), "Requests that met a fault of the service; each is in the log."
    ),
    "tinsmith_submit_seconds": Declared(
        "histogram", ("kind",), "From a checked request to its acknowledgement (journalled)."
    ),
    "tinsmith_ops_total": Declared(
        "counter", ("kind", "outcome"), "Ops carried out; outcome is finished, failed or cancelled."
    ),
    "tinsmith_op_seconds": Declared(
        "histogram", ("kind",), "From an op's acknowledgement to its outcome."
    ),
    "tinsmith_tokens_trained_total": Declared("counter", (), "Tokens that went through passes."),
    "tinsmith_tokens_sampled_total": Declared("counter", (), "Tokens that were sampled."),
    "tinsmith_tokens_prompted_total": Declared(
        "counter", ("cached",), "Tokens of prompts; cached=yes were found in the cache."
    ),
    "tinsmith_decode_steps_total": Declared(
        "counter", (), "Decode steps, each for all samples in flight."
    ),
    "tinsmith_snapshots_total": Declared(
        "counter", ("outcome",), "Snapshots of models; outcome is written or failed."
    ),
    "tinsmith_replayed_ops_total": Declared(
        "counter", (), "Ops of the journal that were done again after a start."
    ),
    "tinsmith_store_failures_total": Declared("counter", (), "Database writes that failed."),
    "tinsmith_requests_in_flight": Declared("gauge", (), "HTTP requests being answered."),
    "tinsmith_body_bytes": Declared("gauge", (), "Bytes reserved for request bodies being read."),
    "tinsmith_queued_ops": Declared("gauge", ("kind",), "Ops that wait to be carried out."),
    "tinsmith_samples_in_flight": Declared("gauge", (), "Samples being decoded."),
    "tinsmith_sessions": Declared("gauge", (), "Sessions that are open."),
    "tinsmith_models": Declared(
        "gauge", ("state",), "Adapters in training: resident in memory, or parked on disk."
    ),
    "tinsmith_memory_bytes": Declared("gauge", ("what",), "What the engine keeps in memory."),
    "tinsmith_resident_memory_bytes": Declared("gauge", (), "Resident memory of the process."),
    "tinsmith_start_time_seconds": Declared("gauge", (), "When the process started, Unix time."),
}


@dataclass(frozen=True)
class Gauge:
    """A value read at the moment of asking."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Registry:
    """Every method is safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], list[float]] = {}  # buckets, +Inf, sum

    def count(self, name: str, amount: float = 1.0, /, **labels: str) -> None:
        key = _key(name, "counter", labels)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        key = _key(name, "histogram", labels)
        with self._lock:
            row = self._histograms.get(key)
            if row is None:
                row = self._histograms[key] = [0.0] * (len(BUCKETS) + 2)
            row[bisect_left(BUCKETS, seconds)] += 1
            row[-1] += seconds

    @contextmanager
    def timed(self, name: str, /, **labels: str) -> Iterator[None]:
        """Observes how long the block took, whether or not it ends well."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(name, time.perf_counter() - start, **labels)

    def value(self, name: str, /, **labels: str) -> float:
        """A counter's value so far."""
        with self._lock:
            return self._counts.get(_key(name, "counter", labels), 0.0)

    def page(self, gauges: Iterable[Gauge] = ()) -> str:
        """Everything counted so far and the gauges, as Prometheus reads it."""
        with self._lock:
            counts = dict(self._counts)
            histograms = {key: list(row) for key, row in self._histograms.items()}
        lines: dict[str, list[str]] = {name: [] for name in DECLARED}
        for (name, labels), value in sorted(counts.items()):
            lines[name].append(f"{name}{_braces(labels)} {_number(value)}")
        for (name, labels), row in sorted(histograms.items()):
            lines[name].extend(_histogram(name, labels, row))
        for gauge in gauges:
            _, labels = _key(gauge.name, "gauge", gauge.labels)
            lines[gauge.name].append(f"{gauge.name}{_braces(labels)} {_number(gauge.value)}")
        text: list[str] = []
        for name, declared in DECLARED.items():
            if declared.kind == "counter" and not declared.labels and not lines[name]:
                lines[name] = [f"{name} 0"]  # so that rates start from something
            if lines[name]:
                text += [f"# HELP {name} {declared.help}", f"# TYPE {name} {declared.kind}"]
                text += lines[name]
        return "\n".join(text) + "\n"


def _key(name: str, kind: Kind, labels: Mapping[str, str]) -> tuple[str, Labels]:
    declared = DECLARED[name]
    assert declared.kind == kind, f"{name} is a {declared.kind}"
    return name, tuple((label, labels[label]) for label in declared.labels)


def _histogram(name: str, labels: Labels, row: list[float]) -> Iterator[str]:
    total = 0.0
    for bound, number in zip((*map(_number, BUCKETS), "+Inf"), row, strict=False):
        total += number
        yield f"{name}_bucket{_braces((*labels, ('le', bound)))} {_number(total)}"
    yield f"{name}_sum{_braces(labels)} {_number(row[-1])}"
    yield f"{name}_count{_braces(labels)} {_number(total)}"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


REGISTRY = Registry()
count = REGISTRY.count
observe = REGISTRY.observe
timed = REGISTRY.timed
page = REGISTRY.page
