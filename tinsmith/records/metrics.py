"""Every metric there is: its unit, what it means in a sentence, and where it is healthy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    meaning: str
    low: float | None = None  # healthy from here
    high: float | None = None  # healthy up to here
    advice: str = ""  # what to think of when it is not
    share_of: tuple[str, ...] = ()  # low and high bound its share of the sum of these
    least_of_first: float | None = None  # healthy from this share of its first value in the run

    def concern(self, value: float) -> str | None:
        """Why this value deserves a look; None when it does not."""
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            return self.advice
        return None


GROUPS = ("groups/mixed", "groups/all_right", "groups/all_wrong")

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
    Metric("retried_rollouts", "", "Tries of a rollout that failed and were made again; the records say why."),
    Metric("rollouts", "", "Rollouts of the step, failed ones included."),
    Metric("failed_rollouts", "", "Rollouts that broke off with an error; they are recorded, not trained on.", high=0,
           advice="some rollouts failed: their records say why"),
    Metric("groups/mixed", "", "Problems whose rollouts differ in reward; only these teach something.", low=0.5, share_of=GROUPS,
           advice="more than half of the problems teach nothing, as their rollouts are all alike: take problems nearer to what the model can do, or no_signal=resample"),
    Metric("groups/all_right", "", "Problems whose rollouts all earned the same reward, above zero."),
    Metric("groups/all_wrong", "", "Problems whose rollouts all earned the same reward, zero or less."),
    Metric("groups/resampled", "", "Further problems that were sampled because groups had no signal (no_signal=resample)."),
    Metric("groups/stale", "", "Groups that were thrown away because their weights had grown too old (mode=async); their problems come again."),
    Metric("trained_rollouts", "", "Rollouts that the update was computed from."),
    Metric("trained_tokens", "tokens", "Tokens that the update learns from: the sampled ones, or what the assistant says (sft)."),
    Metric("trained_sequence_tokens", "tokens", "Tokens that the update passed through the model, prompts included."),
    Metric("loss", "", "The loss of the update per sampled token; its size says little in reinforcement learning."),
    Metric("kl", "nats", "How far the trainer's probabilities lie from the sampler's for the same tokens (an estimate, never below zero).",
           high=0.01, advice="sampler and trainer disagree: with mode=async or several substeps the weights differ in age; else "
           "compare their log-probabilities"),
    Metric("entropy", "nats", "Mean surprise of the sampled tokens: an estimate of how undecided the policy is.",
           least_of_first=0.1, advice="less than a tenth of its first value: the policy hardly varies any more; if the reward stands still, lower optim.lr"),
    Metric("kl_base", "nats", "Mean of the sampler's log-probability minus the base model's, over the trained tokens (kl_coef).",
           high=10, advice="the policy is far from its base model: raise kl_coef or lower optim.lr"),
    Metric("ratio", "", "Mean importance weight: the trainer's probability of a sampled token divided by the sampler's.",
           low=0.9, high=1.1, advice="importance weights are far from 1: fewer substeps, or weights less old"),
    Metric("clipped", "share", "Share of trained tokens whose ratio lies outside clip_low and clip_high (ppo and cispo).", high=0.3,
           advice="almost a third of the tokens are clipped: lower optim.lr, or take fewer substeps"),
    Metric("staleness", "steps", "Mean age of the trained tokens: how many steps older their weights were than those trained."),
    Metric("staleness_max", "steps", "Age of the oldest trained token."),
    Metric("nll", "nats", "Mean negative log-probability of the trained tokens of the step's conversations, before its update (sft)."),
    Metric("conversations", "", "Conversations that the update was computed from (sft)."),
    Metric("updates", "", "Optimizer steps of the batch."),
    Metric("epoch", "", "How often the training problems or conversations have been gone through."),
    Metric("grad_norm", "", "Length of the gradient before clipping, as the optimizer reports it."),
    Metric("lr", "", "Learning rate of the update."),
    Metric("eval/reward", "", "Mean reward on held-out problems, which are never trained on."),
    Metric("eval/reward_stderr", "", "Standard error of eval/reward over the held-out problems."),
    Metric("eval/reward_low", "", "Lower end of the 95 % interval of eval/reward, over problems."),
    Metric("eval/reward_high", "", "Upper end of the 95 % interval of eval/reward, over problems."),
    Metric("eval/pass@1", "share", "Share of held-out rollouts that solved their problem, the mean over problems."),
    Metric("eval/pass@1_low", "share", "Lower end of the 95 % interval of eval/pass@1, over problems."),
    Metric("eval/pass@1_high", "share", "Upper end of the 95 % interval of eval/pass@1, over problems."),
    Metric("eval/pass@k", "share", "Share of held-out problems that at least one of k rollouts solves; k is eval/samples."),
    Metric("eval/pass@k_low", "share", "Lower end of the 95 % interval of eval/pass@k, over problems."),
    Metric("eval/pass@k_high", "share", "Upper end of the 95 % interval of eval/pass@k, over problems."),
    Metric("eval/correct", "share", "Share of held-out rollouts whose answer was right."),
    Metric("eval/well_formed", "share", "Share of held-out rollouts whose answer could be read."),
    Metric("eval/tokens", "tokens", "Mean number of tokens the policy said in a held-out rollout."),
    Metric("eval/cut_off", "share", "Share of held-out rollouts that ran into the token limit.", high=0.1,
           advice="more than 10 % of the held-out rollouts are cut off: raise env.max_tokens"),
    Metric("eval/problems", "", "Held-out problems that were tried."),
    Metric("eval/samples", "", "Rollouts of each held-out problem: the k of eval/pass@k."),
    Metric("eval/failed_rollouts", "", "Held-out rollouts that broke off with an error.", high=0,
           advice="some held-out rollouts failed: their records say why"),
    Metric("eval/nll", "nats", "Mean negative log-probability of the assistant's tokens of the held-out conversations (sft)."),
    Metric("eval/nll_stderr", "nats", "Standard error of eval/nll over the held-out conversations."),
    Metric("eval/conversations", "", "Held-out conversations that eval/nll was measured on (sft)."),
    Metric("time/at", "s", "When the line was written, in seconds since 1970."),
    Metric("time/step", "s", "Duration of the whole step."),
    Metric("time/sample", "s", "Time of the step in which rollouts were in progress, grading included."),
    Metric("time/train", "s", "Time of the step in which the update was in progress: passes, optimizer steps, new weights for the sampler."),
    Metric("time/waiting", "share", "Share of their time that sampler and trainer stood still, waiting for each other."),
    Metric("time/trainer_waiting", "s", "Time of the step in which nothing was being trained."),
    Metric("time/sampler_waiting", "s", "Time of the step in which no rollout was in progress."),
    Metric("time/save", "s", "Time to save a checkpoint after the step."),
    Metric("time/eval", "s", "Time to try the held-out problems."),
    Metric("time/sampled_tokens_per_second", "tokens/s", "Sampled tokens divided by time/sample."),
    Metric("time/trained_tokens_per_second", "tokens/s", "Tokens of the update, prompts included, divided by time/train."),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in TABLE}

# What an environment measures beside these carries its prefix; its meaning is the environment's to say.
OPEN_PREFIXES = ("env/", "eval/env/")


def concerns(line: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Metric -> why its value in this line deserves a look; the history is of the same run, from its start."""
    found: dict[str, str] = {}
    for name, metric in METRICS.items():
        if name in line and (reason := _concern(metric, line, history)):
            found[name] = reason
    return found


def _concern(
    metric: Metric, line: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> str | None:
    value: float = line[metric.name]
    if metric.share_of:
        total = sum(line.get(part, 0.0) for part in metric.share_of)
        return metric.concern(value / total) if total else None
    if metric.least_of_first is not None:
        first = next((one[metric.name] for one in history if metric.name in one), value)
        return metric.advice if value < metric.least_of_first * first else None
    return metric.concern(value)


def is_declared(name: str) -> bool:
    return name in METRICS or name.startswith(OPEN_PREFIXES)


def is_time(name: str) -> bool:
    """Whether the metric depends on the machine's speed, so that two equal runs differ in it."""
    return name.startswith("time/")
