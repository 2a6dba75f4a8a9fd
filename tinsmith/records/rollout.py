"""One rollout as it is stored: what was said, in words and tokens, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict

from tinsmith.records.files import Json

SCHEMA = 1

Split = Literal["train", "eval"]


class Turn(TypedDict, total=False):
    """One side's part of a rollout. Only what the policy said carries log-probabilities."""

    role: str  # prompt: all the policy was shown since its last turn; assistant: what it said
    text: str
    tokens: list[int]
    logprobs: list[float]  # of the sampler, one a token
    version: int  # updates done before the weights that said it
    reward: float
    logs: dict[str, str]  # what the environment noted: answer, expected, ...


@dataclass(frozen=True)
class RolloutRecord:
    step: int
    problem_id: str
    member: int  # which rollout of its problem
    split: Split
    policy_version: int  # updates done before the oldest weights that spoke in it
    reward: float | None  # None: it failed, see `error`
    advantage: float | None  # None: not trained on
    stop_reason: str | None
    turns: list[Turn]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    seconds: float = 0.0
    error: str | None = None
    retried: list[str] = field(default_factory=list[str])  # why earlier tries failed
    schema: int = SCHEMA

    def to_json(self) -> Json:
        # Not asdict: it copies every token and log-probability.
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, values: Json) -> RolloutRecord:
        """Fields that a later version added are left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})
