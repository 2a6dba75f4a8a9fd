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
CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}  # loss -> its usual bounds of the ratio


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def check_least(config: object, **least: float) -> None:
    """Each of these settings is a finite number of at least so much."""
    for name, bound in least.items():
        value = getattr(config, name)
        check(
            math.isfinite(value) and value >= bound,
            f"{name} must be at least {bound} (got {value}).",
        )


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
    schedule: Literal["constant", "linear", "cosine"] = chz.field(
        default="constant", doc="how the learning rate falls from the warm-up to 0 at num_batches"
    )
    warmup_steps: int = chz.field(
        default=0, doc="steps over which the learning rate rises from 0 to optim.lr"
    )
    beta1: float = chz.field(default=0.9, doc="Adam: decay of the mean gradient")
    beta2: float = chz.field(default=0.95, doc="Adam: decay of the mean squared gradient")
    eps: float = chz.field(default=1e-8, doc="Adam: added to the denominator")
    weight_decay: float = chz.field(default=0.0, doc="Adam: pull of the weights towards 0")
    grad_clip: float = chz.field(
        default=0.0, doc="longest gradient; a longer one is scaled down; 0 does not clip"
    )

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
        for name in ("warmup_steps", "weight_decay", "grad_clip"):
            value = getattr(self, name)
            check(
                math.isfinite(value) and value >= 0,
                f"optim.{name} must be a finite number, at least 0 (got {value}).",
            )


@chz.chz
class RolloutConfig:
    concurrent: int = chz.field(
        default=2048, doc="rollouts in progress at once; 0 puts no limit on them"
    )
    seconds: float | None = chz.field(
        default=None, doc="longest time of one rollout; a slower one fails; None puts no limit"
    )
    max_tokens: int | None = chz.field(
        default=None,
        doc="most tokens of one rollout with all its turns; None leaves it to the environment",
    )
    retries: int = chz.field(
        default=1, doc="how often a failed rollout is tried again before it counts as failed"
    )

    @chz.validate
    def _check(self) -> None:
        for name in ("concurrent", "retries"):
            value = getattr(self, name)
            check(value >= 0, f"rollout.{name} must be at least 0 (got {value}).")
        for name in ("seconds", "max_tokens"):
            value = getattr(self, name)
            check(
                value is None or (math.isfinite(value) and value > 0),
                f"rollout.{name} must be a finite number above 0, or None (got {value}).",
            )

    def narrowed(self, limits: RolloutLimits) -> RolloutLimits:
        """An environment's limits, with those that were asked for in their place."""
        from dataclasses import replace

        return replace(
            limits,
            max_trajectory_tokens=self.max_tokens or limits.max_trajectory_tokens,
            seconds=self.seconds or limits.seconds,
            retries=self.retries,
        )


@chz.chz
class WandbConfig:
    enabled: bool = chz.field(default=False, doc="also send the metrics to Weights & Biases")
    entity: str | None = chz.field(default=None, doc="team or user; None is your default one")
    project: str = chz.field(default="tinsmith", doc="project of the run")
    run_name: str | None = chz.field(default=None, doc="name of the run; None is the run's own")
    tags: tuple[str, ...] = chz.field(default=(), doc="tags of the run, separated by commas")
    mode: Literal["online", "offline"] = chz.field(
        default="online", doc="offline writes files into the run directory for `wandb sync`"
    )


@chz.chz
class RunConfig:
    """What every kind of run has."""

    model_name: str = chz.field(
        default=settings.EMBEDDED_MODEL,
        doc="base model: the embedded one, a directory in Hugging Face layout, a .gguf file, or a hub id",
    )
    load_checkpoint_path: str | None = chz.field(
        default=None,
        doc="weights to start from: a run of tinsmith train or sft, or a tinker:// path; None starts from "
        "the base model",
    )
    lora_rank: int = chz.field(default=32, doc="rank of the LoRA adapter that is trained")
    optim: OptimConfig = chz.field(default_factory=OptimConfig, doc="optimizer (Adam)")
    seed: int = chz.field(default=0, doc="decides problems, sampling and the adapter's start")
    eval_every: int = chz.field(
        default=0, doc="steps between evaluations; 0 evaluates only before and after"
    )
    save_every: int = chz.field(default=5, doc="steps between checkpoints; 0 saves only at the end")
    keep_last: int = chz.field(
        default=0, doc="checkpoints kept on the service beside the best one; 0 keeps them all"
    )
    log_path: str | None = chz.field(
        default=None, doc="run directory; one that exists is resumed; None makes a new one"
    )
    base_url: str | None = chz.field(
        default=None, doc="service: None or local for this machine's, a URL, or hosted"
    )
    wandb: WandbConfig = chz.field(default_factory=WandbConfig, doc="Weights & Biases")
    tensorboard: bool = chz.field(
        default=False, doc="also write the metrics for TensorBoard into the run directory"
    )
    dry_run: bool = chz.field(
        default=False, doc="print the plan with its estimates, and start nothing"
    )

    @chz.validate
    def _check(self) -> None:
        check_least(self, lora_rank=1, seed=0, eval_every=0, save_every=0, keep_last=0)
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


@chz.chz
class TrainConfig(RunConfig):
    env: EnvConfig = chz.field(
        meta_factory=chz.factories.subclass(base_cls=EnvConfig),
        doc="environment: the class of its settings",
    )
    batch_size: int = chz.field(default=64, doc="problems a step")
    group_size: int = chz.field(default=8, doc="rollouts of each problem")
    num_batches: int = chz.field(default=40, doc="steps")
    temperature: float = chz.field(
        default=1.0, doc="of sampling; anything but 1 trains on other odds than were sampled"
    )

    # the algorithm
    adv_estimator: Literal["default", "grpo", "rloo", "entropic", "maxrl"] = chz.field(
        default="default",
        doc="advantage: reward minus the group's mean; divided by its deviation; against the others' mean; "
        "weighted towards the best by exp(adv_beta * reward); divided by the mean",
    )
    adv_beta: float = chz.field(
        default=2.0, doc="adv_estimator=entropic: how strongly the best rollouts count"
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = chz.field(
        default="importance_sampling", doc="loss of the update"
    )
    clip_low: float | None = chz.field(
        default=None, doc="ppo and cispo: least ratio of probabilities; None is 0.8 and 0"
    )
    clip_high: float | None = chz.field(
        default=None, doc="ppo and cispo: largest ratio of probabilities; None is 1.2 and 4"
    )
    kl_coef: float = chz.field(
        default=0.0, doc="penalty on every token for leaving the base model's odds; 0 does without"
    )
    no_signal: Literal["drop", "keep", "resample"] = chz.field(
        default="drop",
        doc="groups whose rewards are all alike: not trained on; trained on with advantage 0; or replaced "
        "by further problems",
    )
    max_resample: float = chz.field(
        default=2.0,
        doc="no_signal=resample: at most this many times batch_size further problems a step",
    )
    num_substeps: int = chz.field(default=1, doc="optimizer steps a batch, each on its share of it")
    num_minibatches: int = chz.field(
        default=1, doc="passes an optimizer step, whose gradients add up"
    )
    mode: Literal["sync", "stream", "async"] = chz.field(
        default="sync",
        doc="sample a batch, then train on it; train on its groups as they finish; or sample and train "
        "all the time, on weights at most max_steps_off_policy steps old",
    )
    max_steps_off_policy: int = chz.field(
        default=2,
        doc="mode=async: how many steps older the sampling weights may be than the trained",
    )
    rollout: RolloutConfig = chz.field(default_factory=RolloutConfig, doc="limits of rollouts")

    # evaluation, checkpoints, records
    eval_size: int = chz.field(
        default=200, doc="held-out problems tried before the first and after the last step; 0 none"
    )
    eval_samples: int = chz.field(
        default=1, doc="rollouts of each held-out problem: the k of pass@k"
    )

    @chz.validate
    def _check_numbers(self) -> None:
        check_least(self, batch_size=1, num_batches=1, num_substeps=1, num_minibatches=1)
        check_least(self, max_steps_off_policy=1, max_resample=0, kl_coef=0)
        check_least(self, eval_size=0, eval_samples=1)
        check(
            self.group_size >= 2,
            f"group_size must be at least 2, as the rollouts of a problem are compared with each other (got {self.group_size}).",
        )
        for name in ("temperature", "adv_beta"):
            value = getattr(self, name)
            check(
                math.isfinite(value) and value > 0,
                f"{name} must be a finite number above 0 (got {value}).",
            )

    @chz.validate
    def _check_shares(self) -> None:
        passes = self.num_substeps * self.num_minibatches
        check(
            self.batch_size >= passes,
            f"batch_size must be at least num_substeps * num_minibatches = {passes}, so that each has a "
            f"problem (got {self.batch_size}).",
        )

    @chz.validate
    def _check_clips(self) -> None:
        given = [name for name in ("clip_low", "clip_high") if getattr(self, name) is not None]
        check(
            not given or self.loss_fn in CLIPS,
            f"{' and '.join(given)} needs loss_fn=ppo or loss_fn=cispo (got {self.loss_fn}).",
        )
        low, high = self.clips or (0.0, 1.0)
        check(
            0 <= low <= high < math.inf and high > 0,
            f"clip_low and clip_high must be finite with 0 <= clip_low <= clip_high (got {low} and {high}).",
        )

    def limits(self) -> RolloutLimits:
        """The environment's limits, or narrower ones where they were asked for."""
        return self.rollout.narrowed(self.env.limits())

    @property
    def clips(self) -> tuple[float, float] | None:
        """The bounds of the ratio of probabilities; None for a loss that has none."""
        if self.loss_fn not in CLIPS:
            return None
        low, high = CLIPS[self.loss_fn]
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


def absolute(name: str) -> str:
    """A path that exists, made absolute; any other name as it is."""
    if name == settings.EMBEDDED_MODEL:
        return name
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
