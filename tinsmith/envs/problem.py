"""Single-turn problems: a question, one reply, a grade."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tinsmith.envs.grading.grade import Grader
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
    from tinsmith.chat.render import Message, Renderer


@dataclass(frozen=True)
class Row:
    """A question with its answer; the answer is empty where many are right and none is the model one."""

    id: str
    question: str
    answer: str
    key: str = ""  # by which the grader finds what it needs beside the answer

    @property
    def expected(self) -> str:
        """What the grader is given with a reply."""
        return self.key or self.answer


@dataclass(frozen=True)
class Wording:
    """What stands around every question."""

    prompt: str = ""  # after it
    system: str = ""  # before the conversation

    def messages(self, row: Row) -> list[Message]:
        asked = f"{row.question}\n\n{self.prompt}" if self.prompt else row.question
        said: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*said, {"role": "user", "content": asked}]


class ProblemEnv:
    """Asks the question and grades the reply: reward 1 when it is right, else 0 or what part of it is."""

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
        grade = await self._grade(reply, self._row.expected)
        return StepResult(
            reward=float(grade.correct) if grade.score is None else grade.score,
            done=True,
            metrics={"correct": float(grade.correct), "well_formed": float(grade.well_formed)},
            logs={
                "question": self._row.question,
                "reply": reply,
                "answer": grade.answer,
                "expected": self._row.answer,
            }
            | ({"note": grade.note} if grade.note else {}),
        )


@dataclass(frozen=True)
class ProblemGroup:
    """One row as the problem of a whole group; the question is rendered once."""

    row: Row
    renderer: Renderer
    grade: Grader
    wording: Wording = Wording()

    @property
    def problem_id(self) -> str:
        return self.row.id

    async def make_envs(self, group_size: int) -> Sequence[Env]:
        observation = self.renderer.prompt(self.wording.messages(self.row))
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
    """Rows in a shuffled order of their own for each pass over them; the position alone says which."""

    def __init__(
        self,
        rows: Sequence[Row],
        renderer: Renderer,
        grade: Grader,
        seed: int,
        wording: Wording = Wording(),  # noqa: B008  it is frozen
    ) -> None:
        self._rows = rows
        self._renderer = renderer
        self._grade = grade
        self._seed = seed
        self._wording = wording
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def problem(self, position: int) -> ProblemGroup:
        """The problem at a position; every row comes once before any comes again."""
        if not self._rows:
            raise RunError("the dataset has no problem for this split; change env.held_out.")
        epoch, at = divmod(position, len(self._rows))
        row = self._rows[self._order(epoch)[at]]
        return ProblemGroup(row, self._renderer, self._grade, self._wording)

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order} | {
                e: o for e, o in self._orders.items() if e == epoch - 1
            }
        return self._orders[epoch]

    @cached_property
    def fingerprint(self) -> str:
        """Of the problems in their order; two datasets do not share it."""
        digest = hashlib.sha256()
        for row in self._rows:
            digest.update(
                f"{row.id}\0{row.question}\0{row.answer}\0".encode("utf-8", "surrogatepass")
            )
        return digest.hexdigest()[:16]

    def observe(self, groups_P: Sequence[TrajectoryGroup]) -> Metrics:
        return {}

    def state(self) -> Json:
        return {"rows": len(self._rows), "fingerprint": self.fingerprint}

    def restore(self, state: Json) -> None:
        rows, fingerprint = state.get("rows"), state.get("fingerprint", self.fingerprint)
        if (rows, fingerprint) == (len(self._rows), self.fingerprint):
            return
        what = (
            f"the dataset has {len(self._rows)} problems, it had {rows} when the checkpoint was saved"
            if rows != len(self._rows)
            else "the dataset's problems are not those it had when the checkpoint was saved"
        )
        raise RunError(
            f"{what}, so the run cannot go on as it was. Put the earlier files back, or choose another "
            "log_path to start anew."
        )
