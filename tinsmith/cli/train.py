"""`tinsmith train key=value ...`: trains by reinforcement learning, as a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.cli.config_help import HELP_WORDS, help_text
from tinsmith.cli.rl_job import RlJob
from tinsmith.cli.start import start


def run(argv: Sequence[str]) -> int:
    """Start a run, or go on with one, and show it until it is over or the viewer leaves."""
    words = list(argv)
    if any(word in HELP_WORDS for word in words):
        print(help_text(words))
        return 0
    return start(RlJob, words)
