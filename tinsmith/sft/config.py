"""Every setting of a supervised run, straight from the command line; imports nothing heavy."""

from __future__ import annotations

import math
from typing import Literal

import chz

from tinsmith import settings
from tinsmith.rl.config import (
    EMBEDDED_LR,
    USUAL_LR,
    OptimConfig,
    WandbConfig,
    absolute,
    check,
)


@chz.chz
class SftConfig:
    model_name: str = chz.field(
        default=settings.EMBEDDED_MODEL,
        doc="base model: the embedded one, a directory in Hugging Face layout, a .gguf file, or a hub id",
    )
    load_checkpoint_path: str | None = chz.field(
        default=None,
        doc="weights to begin with: the tinker:// path of a saved state, or the name of a run; None "
        "begins with a fresh adapter",
    )
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
    lora_rank: int = chz.field(default=32, doc="rank of the LoRA adapter that is trained")
    optim: OptimConfig = chz.field(default_factory=OptimConfig, doc="optimizer (Adam)")

    # evaluation, checkpoints, records
    held_out: float = chz.field(
        default=0.05, doc="share of the conversations that is never trained on; 0 holds none out"
    )
    eval_size: int = chz.field(default=200, doc="most conversations that are held out")
    eval_every: int = chz.field(
        default=0, doc="steps between evaluations; 0 evaluates only before and after"
    )
    save_every: int = chz.field(
        default=50, doc="steps between checkpoints; 0 saves only at the end"
    )
    keep_last: int = chz.field(
        default=0, doc="checkpoints kept on the service beside the best one; 0 keeps them all"
    )
    log_path: str | None = chz.field(
        default=None, doc="run directory; one that exists is resumed; None makes a new one"
    )
    base_url: str | None = chz.field(
        default=None, doc="service: None or local for this machine's, a URL, or hosted"
    )
    seed: int = chz.field(
        default=0, doc="decides the order, what is held out, and the adapter's start"
    )
    wandb: WandbConfig = chz.field(default_factory=WandbConfig, doc="Weights & Biases")
    tensorboard: bool = chz.field(
        default=False, doc="also write the metrics for TensorBoard into the run directory"
    )
    dry_run: bool = chz.field(default=False, doc="print the plan, and start nothing")

    @chz.validate
    def _check(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("num_epochs", 1),
            ("lora_rank", 1),
            ("max_length", 2),
            ("eval_size", 0),
            ("eval_every", 0),
            ("save_every", 0),
            ("keep_last", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            check(value >= least, f"{name} must be at least {least} (got {value}).")
        check(
            self.num_batches is None or self.num_batches >= 1,
            f"num_batches must be at least 1, or None (got {self.num_batches}).",
        )
        check(
            math.isfinite(self.held_out) and 0 <= self.held_out < 1,
            f"held_out must be a share from 0 to less than 1 (got {self.held_out}).",
        )
        check(bool(self.model_name.strip()), "model_name must not be empty.")

    @property
    def learning_rate(self) -> float:
        if self.optim.lr is not None:
            return self.optim.lr
        return EMBEDDED_LR if self.model_name == settings.EMBEDDED_MODEL else USUAL_LR

    @property
    def base_model(self) -> str:
        """The model's name as the service understands it, whose working directory is another."""
        return absolute(self.model_name)

    @property
    def first_weights(self) -> str | None:
        """load_checkpoint_path, which may be the directory of a run."""
        return None if self.load_checkpoint_path is None else absolute(self.load_checkpoint_path)
