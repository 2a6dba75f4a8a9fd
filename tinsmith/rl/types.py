"""The nouns of a rollout. Sequences say what they run over: _P problems, _G rollouts of one, _T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tinsmith.chat.turns import Action, Observation

Metrics: TypeAlias = dict[str, float]
Json: TypeAlias = dict[str, Any]  # a problem source keeps whatever JSON holds

__all__ = [
    "Action",
    "Env",
    "EnvGroupBuilder",
    "Json",
    "Metrics",
    "Observation",
    "Policy",
    "ProblemSource",
    "RolloutLimits",
    "StepResult",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
]


@dataclass(frozen=True)
class StepResult:
    """What the environment makes of an action; `next` is None when it is done."""

    reward: float
    done: bool
    next: Observation | None = None
    metrics: Metrics = field(default_factory=dict[str, float])
    logs: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Transition:
    observation: Observation
    action: Action
    reward: float
    metrics: Metrics = field(default_factory=dict[str, float])
    logs: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Trajectory:
    """One rollout. With an `error` it broke off: its transitions are kept, it has no reward."""

    transitions: list[Transition]
    stop_reason: str
    seconds: float = 0.0
    error: str | None = None
    retried: tuple[str, ...] = ()  # why earlier tries of this rollout failed

    @property
    def cut_off(self) -> bool:
        return any(t.action.stop_reason == "length" for t in self.transitions)

    @property
    def action_tokens(self) -> int:
        return sum(len(t.action.tokens_T) for t in self.transitions)


@dataclass(frozen=True)
class TrajectoryGroup:
    """All rollouts of one problem, in the order of their members, failed ones among them."""

    problem_id: str
    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]  # from the group as a whole, added to what the steps earned
    metrics_G: list[Metrics]
    position: int = 0  # of the problem in its source

    @property
    def version(self) -> int:
        """Of the oldest weights that said anything in it."""
        said = [s.action.version for t in self.trajectories_G for s in t.transitions]
        return min(said, default=0)

    def rewards_G(self) -> list[float | None]:
        """The steps' rewards plus the final one; None for a rollout that failed."""
        return [
            None if t.error is not None else sum(s.reward for s in t.transitions) + final
            for t, final in zip(self.trajectories_G, self.final_rewards_G, strict=True)
        ]


@dataclass(frozen=True)
class RolloutLimits:
    """Where a rollout ends whatever its environment thinks, and how often a failed one is tried again."""

    max_tokens_per_turn: int
    max_turns: int = 1
    max_trajectory_tokens: int | None = None
    seconds: float | None = None
    retries: int = 0


class Policy(Protocol):
    """Speaks with one version of the weights. The same seed gives the same actions."""

    @property
    def version(self) -> int: ...  # updates done before these weights

    async def __call__(
        self, observation: Observation, *, max_tokens: int, samples: int, seed: int
    ) -> list[Action]: ...


class Env(Protocol):
    """One episode, then discarded; there is no reset."""

    async def initial_observation(self) -> Observation: ...
    async def step(self, action: Action) -> StepResult: ...


class EnvGroupBuilder(Protocol):
    """One problem: makes an environment for each of its rollouts. Picklable."""

    @property
    def problem_id(self) -> str: ...
    async def make_envs(self, group_size: int) -> Sequence[Env]: ...
    async def group_rewards(
        self, trajectories_G: Sequence[Trajectory], envs_G: Sequence[Env]
    ) -> list[tuple[float, Metrics]]: ...
    async def cleanup(self) -> None: ...


class ProblemSource(Protocol):
    """What an EnvConfig builds. Its state goes into checkpoints, so a resumed run is the same run."""

    def __len__(self) -> int: ...  # different problems it has
    def problem(self, position: int) -> EnvGroupBuilder: ...  # of an endless sequence, from 0
    def observe(self, groups_P: Sequence[TrajectoryGroup]) -> Metrics: ...
    def state(self) -> Json: ...
    def restore(self, state: Json) -> None: ...
