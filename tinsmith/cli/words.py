"""Numbers as people read them: durations, rates, shares, bars and sparklines."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """42s, 5m40s, 2h05m."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def count(value: float) -> str:
    """840, 1.9k, 3.2M."""
    for limit, divisor, unit in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            return f"{value / divisor:.1f}{unit}" if unit else f"{value:.0f}"
    return f"{value / 1e9:.1f}G"


def number(value: float) -> str:
    """Three digits that matter, without a tail of zeros."""
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")


def share(value: float) -> str:
    """0.98 as 98 %, 0.012 as 1.2 %."""
    percent = 100 * value
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def ago(seconds: float) -> str:
    """just now, 5 min ago, 3 h ago, 2 d ago."""
    for limit, divisor, unit in ((60, 1, ""), (3600, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit} ago" if unit else "just now"
    return f"{seconds / 86400:.0f} d ago"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last values as blocks; between 0 and 1 when they all are, else from least to greatest."""
    shown = list(values[-width:])
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    if high == low:
        return BLOCKS[3] * len(shown)
    span = high - low
    return "".join(BLOCKS[min(int((value - low) / span * 8), 7)] for value in shown)


def bar(done: float, total: float, width: int) -> str:
    """A line filled to done/total."""
    filled = min(max(done / total, 0.0), 1.0) * width if total > 0 else 0.0
    whole = int(filled)
    if whole >= width:
        return "━" * width
    half = "╸" if filled - whole >= 0.5 else "─"
    return "━" * whole + half + "─" * (width - whole - 1)
