"""Single-turn problems: a question, one reply, a grade."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tinsmith.envs.grading.numbers import Grade
from tinsmith.errors import RunError
from tinsmith.rl.types import (
    Action,
    Env,
    Json,
    Metrics,
    Observation,
    StepResult,
    Trajectory,
    TrajectoryGroup,
)

if TYPE_CHECKING:
    from tinsmith.chat.render import Renderer

Grader: TypeAlias = Callable[[str, str], Grade]  # reply, expected answer


@dataclass(frozen=True)
class Row:
    id: str
    question: str
    answer: str


class ProblemEnv:
    """Asks the question and grades the reply: reward 1 when it is right, else 0."""

    def __init__(
        self, row: Row, observation: Observation, renderer: Renderer, grade: Grader
    ) -> None:
        self._row = row
        self._observation = observation
        self._renderer = renderer
        self._grade = grade

    async def initial_observation(self) -> Observation:
        return self._observation

    async def step(self, action: Action) -> StepResult:
        reply = self._renderer.parse(action)
        grade = self._grade(reply, self._row.answer)
        return StepResult(
            reward=float(grade.correct),
            done=True,
            metrics={"correct": float(grade.correct), "well_formed": float(grade.well_formed)},
            logs={
                "question": self._row.question,
                "reply": reply,
                "answer": grade.answer,
                "expected": self._row.answer,
            },
        )


@dataclass(frozen=True)
class ProblemGroup:
    """One row as the problem of a whole group; the question is rendered once."""

    row: Row
    renderer: Renderer
    grade: Grader

    @property
    def problem_id(self) -> str:
        return self.row.id

    async def make_envs(self, group_size: int) -> Sequence[Env]:
        observation = self.renderer.prompt([{"role": "user", "content": self.row.question}])
        return [
            ProblemEnv(self.row, observation, self.renderer, self.grade) for _ in range(group_size)
        ]

    async def group_rewards(
        self, trajectories_G: Sequence[Trajectory], envs_G: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        return [(0.0, {}) for _ in trajectories_G]

    async def cleanup(self) -> None:
        return None


class RowSource:
    """Rows in a shuffled order of their own for each pass over them; the step alone says which come."""

    def __init__(self, rows: Sequence[Row], renderer: Renderer, grade: Grader, seed: int) -> None:
        self._rows = rows
        self._renderer = renderer
        self._grade = grade
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, step: int, size: int) -> list[ProblemGroup]:
        """The problems of a step, counted from 1; every row comes once before any comes again."""
        first = (step - 1) * size
        picked = (divmod(position, len(self._rows)) for position in range(first, first + size))
        return [
            ProblemGroup(self._rows[self._order(epoch)[at]], self._renderer, self._grade)
            for epoch, at in picked
        ]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order} | {
                e: o for e, o in self._orders.items() if e == epoch - 1
            }
        return self._orders[epoch]

    def observe(self, groups_P: Sequence[TrajectoryGroup]) -> Metrics:
        return {}

    def state(self) -> Json:
        return {"rows": len(self._rows)}

    def restore(self, state: Json) -> None:
        before = state.get("rows")
        if before != len(self._rows):
            raise RunError(
                f"the dataset has {len(self._rows)} problems, it had {before} when the checkpoint was "
                "saved, so the run cannot go on as it was. Choose another log_path to start anew."
            )
