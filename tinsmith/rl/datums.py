"""Rollouts and advantages to training data; turns that continue each other become one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinsmith.rl.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import tinker


@dataclass
class TokenSequence:
    """Tokens of one sequence with what the loss needs at each; only sampled tokens carry anything."""

    tokens_T: list[int] = field(default_factory=list[int])
    logprobs_T: list[float] = field(default_factory=list[float])
    sampled_T: list[bool] = field(default_factory=list[bool])

    def add_shown(self, tokens_T: Sequence[int]) -> None:
        self.tokens_T.extend(tokens_T)
        self.logprobs_T.extend([0.0] * len(tokens_T))
        self.sampled_T.extend([False] * len(tokens_T))

    def add_said(self, tokens_T: Sequence[int], logprobs_T: Sequence[float]) -> None:
        self.tokens_T.extend(tokens_T)
        self.logprobs_T.extend(logprobs_T)
        self.sampled_T.extend([True] * len(tokens_T))


def merge_turns(trajectory: Trajectory) -> list[TokenSequence]:
    """The fewest sequences that hold every turn: a turn whose observation begins with all that was
    shown and said before extends the sequence, any other begins a new one."""
    sequences: list[TokenSequence] = []
    for transition in trajectory.transitions:
        shown = transition.observation.tokens_T
        before = sequences[-1].tokens_T if sequences else None
        if before is not None and shown[: len(before)] == before:
            sequences[-1].add_shown(shown[len(before) :])
        else:
            sequences.append(TokenSequence())
            sequences[-1].add_shown(shown)
        sequences[-1].add_said(transition.action.tokens_T, transition.action.logprobs_T)
    return sequences


def to_datums(
    groups_P: Sequence[TrajectoryGroup], advantages_P: Sequence[Sequence[float | None]]
) -> list[tinker.Datum]:
    """Training data of every rollout that has an advantage, in order."""
    return [
        _datum(sequence, advantage)
        for group, advantages_G in zip(groups_P, advantages_P, strict=True)
        for trajectory, advantage in zip(group.trajectories_G, advantages_G, strict=True)
        if advantage is not None
        for sequence in merge_turns(trajectory)
    ]


def _datum(sequence: TokenSequence, advantage: float) -> tinker.Datum:
    """Position i of the input predicts token i + 1, so the loss's inputs begin at token 1."""
    import numpy as np
    import tinker

    sampled = np.array(sequence.sampled_T[1:], dtype=np.float32)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(sequence.tokens_T[:-1]),
        loss_fn_inputs={
            "target_tokens": np.array(sequence.tokens_T[1:], dtype=np.int64),  # type: ignore[dict-item]
            "logprobs": np.array(sequence.logprobs_T[1:], dtype=np.float32),  # type: ignore[dict-item]
            "advantages": sampled * np.float32(advantage),  # type: ignore[dict-item]
        },
    )
