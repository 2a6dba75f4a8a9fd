"""Questions with one right number, from a named dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import chz

from tinsmith.envs import datasets
from tinsmith.rl.config import EnvConfig

if TYPE_CHECKING:
    from tinsmith.chat.render import Renderer
    from tinsmith.records.rollout import Split
    from tinsmith.rl.types import ProblemSource


@chz.chz
class MathConfig(EnvConfig):
    dataset: str = chz.field(default="arithmetic", doc="which questions")
    seed: int = chz.field(default=0, doc="decides which problems are held out")

    @chz.validate
    def _check_dataset(self) -> None:
        datasets.check_name(self.dataset)

    def build(self, renderer: Renderer, seed: int, split: Split) -> ProblemSource:
        from tinsmith.envs.grading.numbers import grade_integer
        from tinsmith.envs.problem import RowSource

        train, held_out = datasets.load(self.dataset, self.seed)
        if split == "eval":
            return RowSource(held_out, renderer, grade_integer, self.seed)
        return RowSource(train, renderer, grade_integer, seed)
