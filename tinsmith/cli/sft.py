"""`tinsmith sft data=FILE.jsonl key=value ...`: supervised training, as a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.cli.config_help import HELP_WORDS, help_text
from tinsmith.cli.sft_job import SftJob
from tinsmith.cli.start import start
from tinsmith.sft.config import SftConfig

HEAD = "tinsmith sft data=FILE.jsonl key=value ...   teach a model by examples and watch it"


def run(argv: Sequence[str]) -> int:
    """Start a run, or go on with one, and show it until it is over or the viewer leaves."""
    words = list(argv)
    if any(word in HELP_WORDS for word in words):
        print(help_text(words, SftConfig, HEAD))
        return 0
    return start(SftJob, words)
