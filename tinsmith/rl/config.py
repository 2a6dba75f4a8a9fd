"""Every setting of a training run, straight from the command line; imports nothing heavy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import chz

from tinsmith import settings
from tinsmith.errors import ConfigError

if TYPE_CHECKING:
    from tinsmith.chat.render import Renderer
    from tinsmith.records.rollout import Split
    from tinsmith.rl.types import ProblemSource, RolloutLimits

EMBEDDED_LR = 1e-3  # a model of 0.1-1 M parameters wants larger steps than one of billions
USUAL_LR = 1e-4


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@chz.chz
class EnvConfig:
    """Base of the environments' settings; `env=MathConfig` picks a subclass by name."""

    max_tokens: int = chz.field(default=32, doc="most tokens the policy may say in one turn")

    @chz.validate
    def _check_max_tokens(self) -> None:
        check(self.max_tokens >= 1, f"env.max_tokens must be at least 1 (got {self.max_tokens}).")

    def build(self, renderer: Renderer, seed: int, split: Split) -> ProblemSource:
        """The problems of one split; the seed decides their order."""
        raise NotImplementedError

    def limits(self) -> RolloutLimits:
        """Where a rollout ends whatever its environment thinks."""
        from tinsmith.rl.types import RolloutLimits

        return RolloutLimits(max_tokens_per_turn=self.max_tokens)


@chz.chz
class OptimConfig:
    lr: float | None = chz.field(
        default=None,
        doc=f"learning rate; None means {EMBEDDED_LR:g} for {settings.EMBEDDED_MODEL} and {USUAL_LR:g} for any other model",
    )
    beta1: float = chz.field(default=0.9, doc="Adam: decay of the mean gradient")
    beta2: float = chz.field(default=0.95, doc="Adam: decay of the mean squared gradient")
    eps: float = chz.field(default=1e-8, doc="Adam: added to the denominator")

    @chz.validate
    def _check(self) -> None:
        check(
            self.lr is None or (math.isfinite(self.lr) and self.lr > 0),
            f"optim.lr must be a finite number above 0 (got {self.lr}).",
        )
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            check(0 <= value < 1, f"optim.{name} must be in [0, 1) (got {value}).")
        check(
            math.isfinite(self.eps) and self.eps > 0,
            f"optim.eps must be a finite number above 0 (got {self.eps}).",
        )


@chz.chz
class WandbConfig:
    enabled: bool = chz.field(default=False, doc="also send the metrics to Weights & Biases")
    entity: str | None = chz.field(default=None, doc="team or user; None is your default one")
    project: str = chz.field(default="tinsmith", doc="project of the run")
    run_name: str | None = chz.field(default=None, doc="name of the run; None is the run's own")


@chz.chz
class TrainConfig:
    model_name: str = chz.field(
        default=settings.EMBEDDED_MODEL,
        doc="base model: the embedded one, a directory in Hugging Face layout, or a hub id",
    )
    env: EnvConfig = chz.field(
        meta_factory=chz.factories.subclass(base_cls=EnvConfig),
        doc="environment: the class of its settings",
    )
    batch_size: int = chz.field(default=64, doc="problems a step")
    group_size: int = chz.field(default=8, doc="rollouts of each problem")
    num_batches: int = chz.field(default=40, doc="steps")
    lora_rank: int = chz.field(default=32, doc="rank of the LoRA adapter that is trained")
    temperature: float = chz.field(
        default=1.0, doc="of sampling; anything but 1 trains on other odds than were sampled"
    )
    adv_estimator: Literal["default", "grpo", "rloo"] = chz.field(
        default="default",
        doc="advantage: reward minus the group's mean; divided by its deviation; or against the others' mean",
    )
    loss_fn: Literal["importance_sampling", "ppo"] = chz.field(
        default="importance_sampling", doc="loss of the update"
    )
    optim: OptimConfig = chz.field(default_factory=OptimConfig, doc="optimizer (Adam)")
    eval_size: int = chz.field(
        default=200, doc="held-out problems tried before the first and after the last step; 0 none"
    )
    save_every: int = chz.field(default=5, doc="steps between checkpoints; 0 saves only at the end")
    log_path: str | None = chz.field(
        default=None, doc="run directory; one that exists is resumed; None makes a new one"
    )
    base_url: str | None = chz.field(
        default=None, doc="service: None or local for this machine's, a URL, or hosted"
    )
    seed: int = chz.field(default=0, doc="decides problems, sampling and the adapter's start")
    wandb: WandbConfig = chz.field(default_factory=WandbConfig, doc="Weights & Biases")

    @chz.validate
    def _check(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("num_batches", 1),
            ("lora_rank", 1),
            ("eval_size", 0),
            ("save_every", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            check(value >= least, f"{name} must be at least {least} (got {value}).")
        check(
            self.group_size >= 2,
            f"group_size must be at least 2, as the rollouts of a problem are compared with each other (got {self.group_size}).",
        )
        check(
            math.isfinite(self.temperature) and self.temperature > 0,
            f"temperature must be a finite number above 0 (got {self.temperature}).",
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
        if self.model_name == settings.EMBEDDED_MODEL:
            return self.model_name
        path = Path(self.model_name).expanduser()
        return str(path.resolve()) if path.is_dir() else self.model_name
