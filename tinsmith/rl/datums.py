"""Rollouts and advantages to training data; turns that continue each other become one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinsmith.rl.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class TrainingSequence:
    """Tokens with what the loss needs at each; only sampled tokens carry anything."""

    tokens_T: NDArray[np.int64]
    logprobs_T: NDArray[np.float32]  # of the sampler
    advantages_T: NDArray[np.float32]
    sampled_T: NDArray[np.bool_]
    versions_T: NDArray[np.int32]  # of the weights that sampled it; where sampled_T

    def with_advantages(self, advantages_T: NDArray[np.float32]) -> TrainingSequence:
        return replace(self, advantages_T=advantages_T)

    def datum(self) -> tinker.Datum:
        """Position i of the input predicts token i + 1, so the loss's inputs begin at token 1."""
        import tinker

        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(self.tokens_T[:-1].tolist()),
            loss_fn_inputs={
                "target_tokens": self.tokens_T[1:],  # type: ignore[dict-item]
                "logprobs": self.logprobs_T[1:],  # type: ignore[dict-item]
                "advantages": self.advantages_T[1:],  # type: ignore[dict-item]
            },
        )


@dataclass
class _Turns:
    """Turns of a trajectory that continue each other, while they are being put together."""

    tokens_T: list[int] = field(default_factory=list[int])
    logprobs_T: list[float] = field(default_factory=list[float])
    versions_T: list[int] = field(default_factory=list[int])  # -1 where nothing was sampled

    def add(self, tokens_T: Sequence[int], logprobs_T: Sequence[float], version: int) -> None:
        self.tokens_T.extend(tokens_T)
        self.logprobs_T.extend(logprobs_T)
        self.versions_T.extend([version] * len(tokens_T))

    def finish(self, advantage: float) -> TrainingSequence:
        versions_T = np.array(self.versions_T, dtype=np.int32)
        sampled_T = versions_T >= 0
        return TrainingSequence(
            tokens_T=np.array(self.tokens_T, dtype=np.int64),
            logprobs_T=np.array(self.logprobs_T, dtype=np.float32),
            advantages_T=sampled_T.astype(np.float32) * np.float32(advantage),
            sampled_T=sampled_T,
            versions_T=versions_T,
        )


def merge_turns(trajectory: Trajectory, advantage: float) -> list[TrainingSequence]:
    """The fewest sequences that hold every turn: a turn whose observation begins with all that was
    shown and said before extends the sequence, any other begins a new one."""
    sequences: list[_Turns] = []
    for transition in trajectory.transitions:
        shown = transition.observation.tokens_T
        before = sequences[-1].tokens_T if sequences else None
        if before is None or shown[: len(before)] != before:
            sequences.append(_Turns())
            before = []
        new = shown[len(before) :]
        sequences[-1].add(new, [0.0] * len(new), -1)
        action = transition.action
        sequences[-1].add(action.tokens_T, action.logprobs_T, action.version)
    return [sequence.finish(advantage) for sequence in sequences]


def to_sequences(
    group: TrajectoryGroup, advantages_G: Sequence[float | None]
) -> Iterator[TrainingSequence]:
    """Training data of every rollout of a group that has an advantage, in order."""
    for trajectory, advantage in zip(group.trajectories_G, advantages_G, strict=True):
        if advantage is not None:
            yield from merge_turns(trajectory, advantage)
