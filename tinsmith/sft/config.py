"""Every setting of a supervised run, straight from the command line; imports nothing heavy."""

from __future__ import annotations

import math
from typing import Literal

import chz

from tinsmith.rl.config import RunConfig, check, check_least


@chz.chz
class SftConfig(RunConfig):
    data: str | None = chz.field(
        default=None,
        doc="JSONL file: each line has messages, or prompt and completion, or question and answer",
    )
    skip_bad: bool = chz.field(
        default=False, doc="leave out lines that cannot be used, and count them; False refuses them"
    )
    train_on: Literal["all_assistant", "last_assistant"] = chz.field(
        default="all_assistant", doc="which of the assistant's messages are learnt"
    )
    max_length: int = chz.field(default=2048, doc="most tokens of a conversation")
    too_long: Literal["cut", "skip"] = chz.field(
        default="cut", doc="what happens to a longer one: its end is cut off, or it is left out"
    )
    batch_size: int = chz.field(default=32, doc="conversations a step")
    num_epochs: int = chz.field(default=1, doc="how often each conversation is trained on")
    num_batches: int | None = chz.field(
        default=None, doc="steps; None means as many as num_epochs takes"
    )
    held_out: float = chz.field(
        default=0.05, doc="share of the conversations that is never trained on; 0 holds none out"
    )
    eval_size: int = chz.field(default=200, doc="most conversations that are held out")
    save_every: int = chz.field(
        default=50, doc="steps between checkpoints; 0 saves only at the end"
    )

    @chz.validate
    def _check_numbers(self) -> None:
        check_least(self, batch_size=1, num_epochs=1, max_length=2, eval_size=0)
        check(
            self.num_batches is None or self.num_batches >= 1,
            f"num_batches must be at least 1, or None (got {self.num_batches}).",
        )
        check(
            math.isfinite(self.held_out) and 0 <= self.held_out < 1,
            f"held_out must be a share from 0 to less than 1 (got {self.held_out}).",
        )
