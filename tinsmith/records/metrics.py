"""Every metric there is: its unit, what it means in a sentence, and where it is healthy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    meaning: str
    low: float | None = None  # healthy from here
    high: float | None = None  # healthy up to here
    advice: str = ""  # what to think of when it is not

    def concern(self, value: float) -> str | None:
        """Why this value deserves a look; None when it does not."""
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            return self.advice
        return None


TABLE: tuple[Metric, ...] = (
    Metric("reward", "", "Mean reward of all rollouts of the step, whether or not they were trained on; failed ones have none."),
    Metric("reward_std", "", "Standard deviation of the reward over the rollouts of the step."),
    Metric("correct", "share", "Share of rollouts whose answer was right."),
    Metric("well_formed", "share", "Share of rollouts whose answer could be read.", low=0.5,
           advice="half of the answers cannot be read: look at some rollouts"),
    Metric("cut_off", "share", "Share of rollouts that ran into the token limit.", high=0.1,
           advice="more than 10 % of the rollouts are cut off: raise env.max_tokens"),
    Metric("tokens", "tokens", "Mean number of tokens the policy said in a rollout."),
    Metric("turns", "turns", "Mean number of times the policy spoke in a rollout."),
    Metric("rollouts", "", "Rollouts of the step, failed ones included."),
    Metric("failed_rollouts", "", "Rollouts that broke off with an error; they are recorded, not trained on.", high=0,
           advice="some rollouts failed: their records say why"),
    Metric("groups/mixed", "", "Problems whose rollouts differ in reward; only these teach something."),
    Metric("groups/all_right", "", "Problems whose rollouts all earned the same reward, above zero."),
    Metric("groups/all_wrong", "", "Problems whose rollouts all earned the same reward, zero or less."),
    Metric("trained_rollouts", "", "Rollouts that the update was computed from."),
    Metric("trained_tokens", "tokens", "Sampled tokens that the update was computed from."),
    Metric("loss", "", "The loss of the update per sampled token; its size says little in reinforcement learning."),
    Metric("kl", "nats", "How far the trainer's probabilities lie from the sampler's for the same tokens (an estimate, never below zero).",
           high=0.01, advice="sampler and trainer disagree: compare their log-probabilities"),
    Metric("entropy", "nats", "Mean surprise of the sampled tokens: an estimate of how undecided the policy is."),
    Metric("grad_norm", "", "Length of the gradient before clipping, as the optimizer reports it."),
    Metric("lr", "", "Learning rate of the update."),
    Metric("eval/reward", "", "Mean reward on held-out problems, which are never trained on."),
    Metric("eval/reward_stderr", "", "Standard error of eval/reward over the held-out problems."),
    Metric("eval/correct", "share", "Share of held-out rollouts whose answer was right."),
    Metric("eval/well_formed", "share", "Share of held-out rollouts whose answer could be read."),
    Metric("eval/problems", "", "Held-out problems that were tried."),
    Metric("eval/failed_rollouts", "", "Held-out rollouts that broke off with an error.", high=0,
           advice="some held-out rollouts failed: their records say why"),
    Metric("time/at", "s", "When the line was written, in seconds since 1970."),
    Metric("time/step", "s", "Duration of the whole step."),
    Metric("time/sample", "s", "Time to sample and grade the step's rollouts."),
    Metric("time/train", "s", "Time of forward_backward and optim_step."),
    Metric("time/publish", "s", "Time to hand the new weights to the sampler."),
    Metric("time/save", "s", "Time to save a checkpoint after the step."),
    Metric("time/eval", "s", "Time to try the held-out problems."),
    Metric("time/sampled_tokens_per_second", "tokens/s", "Sampled tokens divided by time/sample."),
    Metric("time/trained_tokens_per_second", "tokens/s", "Tokens of the update, prompts included, divided by time/train."),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in TABLE}

# What an environment measures beside these carries its prefix; its meaning is the environment's to say.
OPEN_PREFIXES = ("env/", "eval/env/")


def is_declared(name: str) -> bool:
    return name in METRICS or name.startswith(OPEN_PREFIXES)


def is_time(name: str) -> bool:
    """Whether the metric depends on the machine's speed, so that two equal runs differ in it."""
    return name.startswith("time/")
