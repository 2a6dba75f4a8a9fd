"""Every setting of an evaluation, straight from the command line; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import chz

from tinsmith.rl.config import EnvConfig, RolloutConfig, check

if TYPE_CHECKING:
    from tinsmith.rl.types import RolloutLimits

BEST = "best"


@chz.chz
class EvalConfig:
    env: EnvConfig = chz.field(
        meta_factory=chz.factories.subclass(base_cls=EnvConfig),
        doc="environment: the class of its settings; that of a run is its own",
    )
    eval_size: int = chz.field(default=200, doc="held-out problems that are tried")
    eval_samples: int = chz.field(default=1, doc="rollouts of each problem: the k of pass@k")
    temperature: float = chz.field(
        default=1.0, doc="of sampling; 0 always takes the likeliest token"
    )
    seed: int = chz.field(default=0, doc="decides the sampling")
    step: str | None = chz.field(
        default=None, doc="of a run: the checkpoint of this step, or best; None is the last one"
    )
    model: str | None = chz.field(default=None, doc="of an endpoint: the name of the model there")
    requests: int = chz.field(default=16, doc="of an endpoint: requests in progress at once")
    rollout: RolloutConfig = chz.field(default_factory=RolloutConfig, doc="limits of rollouts")
    base_url: str | None = chz.field(
        default=None,
        doc="service: None or local for this machine's, a URL, or hosted; that of a run is its own",
    )
    log_path: str | None = chz.field(
        default=None,
        doc="directory of the results; None is the run's own, or a new one for anything else",
    )
    show: int = chz.field(default=3, doc="right and wrong rollouts that are printed, of each")
    json: bool = chz.field(default=False, doc="print the result as JSON for programs")

    @chz.validate
    def _check(self) -> None:
        for name, least in (
            ("eval_size", 1),
            ("eval_samples", 1),
            ("seed", 0),
            ("requests", 1),
            ("show", 0),
        ):
            value = getattr(self, name)
            check(value >= least, f"{name} must be at least {least} (got {value}).")
        check(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"temperature must be a finite number, at least 0 (got {self.temperature}).",
        )
        check_step(self.step)

    def limits(self) -> RolloutLimits:
        """The environment's limits, or narrower ones where they were asked for."""
        own = self.env.limits()
        return replace(
            own,
            max_trajectory_tokens=self.rollout.max_tokens or own.max_trajectory_tokens,
            seconds=self.rollout.seconds or own.seconds,
            retries=self.rollout.retries,
        )


def check_step(step: str | None) -> None:
    check(
        step is None or step == BEST or (step.isascii() and step.isdigit()),
        f"step must be the number of a step, or {BEST} (got {step!r}).",
    )
