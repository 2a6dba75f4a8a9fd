"""Writes docs/metrics.md: every metric with its unit, its meaning and where it is healthy.

    python scripts/metrics_page.py

All of it comes from the table in tinsmith/records/metrics.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tinsmith.records.metrics import OPEN_PREFIXES, TABLE, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
# heading -> how the names of its metrics begin; the first that fits takes a metric
SECTIONS = {
    "Held-out": ("eval/",),
    "Time": ("time/",),
    "Groups of rollouts": ("groups/",),
    "Rollouts": (
        "reward",
        "correct",
        "well_formed",
        "cut_off",
        "tokens",
        "turns",
        "rollouts",
        "failed_",
        "retried_",
    ),
    "The update": ("",),
}
ORDER = ("Rollouts", "Groups of rollouts", "The update", "Held-out", "Time")


def main() -> int:
    PAGE.write_text(page())
    print(f"{len(TABLE)} metrics; {PAGE} is written")
    return 0


def page() -> str:
    lines = [
        "# Metrics",
        "",
        "`metrics.jsonl` in the run directory has one line a step, `tinsmith runs show RUN` prints the last one, and the",
        "live view, W&B and TensorBoard show the same names. A metric that leaves its healthy range turns yellow in the live",
        "view, with the reason given here. `python scripts/metrics_page.py` writes this page from the table in",
        "`tinsmith/records/metrics.py`; a test keeps it true.",
    ]
    for heading in ORDER:
        lines += [
            "",
            f"## {heading}",
            "",
            "| metric | unit | meaning | healthy |",
            "|---|---|---|---|",
        ]
        lines += [row(metric) for metric in TABLE if section(metric) == heading]
    prefixes = " and ".join(f"`{prefix}`" for prefix in OPEN_PREFIXES)
    lines += ["", f"What an environment measures beside these begins with {prefixes}.", ""]
    return "\n".join(lines)


def section(metric: Metric) -> str:
    return next(name for name, starts in SECTIONS.items() if metric.name.startswith(starts))


def row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {healthy(metric)} |"


def healthy(metric: Metric) -> str:
    """The range in words, with what to think of outside of it."""
    bounds: list[str] = []
    if metric.low is not None:
        bounds.append(f"at least {metric.low:g}")
    if metric.high is not None:
        bounds.append(f"at most {metric.high:g}")
    if metric.least_of_first is not None:
        bounds.append(f"at least {metric.least_of_first:g} of its first value")
    if not bounds:
        return ""
    of = f" of {' + '.join(f'`{name}`' for name in metric.share_of)}" if metric.share_of else ""
    return f"{' and '.join(bounds)}{of}; else: {metric.advice}"


if __name__ == "__main__":
    sys.exit(main())
