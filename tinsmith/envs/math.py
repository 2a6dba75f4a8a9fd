"""Questions with answers that can be checked, from a dataset by name, hub id or path."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import chz

from tinsmith.envs import datasets
from tinsmith.errors import ConfigError, one_of
from tinsmith.rl.config import EnvConfig, check

if TYPE_CHECKING:
    from tinsmith.chat.render import Renderer
    from tinsmith.envs.grading.grade import Grader
    from tinsmith.envs.problem import Row, Wording
    from tinsmith.records.rollout import Split
    from tinsmith.rl.types import ProblemSource

ARITHMETIC_TOKENS = 32
USUAL_TOKENS = 1024
USUAL_PROMPT = "Reason step by step, and put your final answer in \\boxed{}."


def _usual_tokens(config: Any, given: int | None) -> int:
    if given is not None:
        return given
    return ARITHMETIC_TOKENS if config.dataset == datasets.ARITHMETIC else USUAL_TOKENS


def _usual_difficulty(config: Any, given: str | None) -> str | None:
    return datasets.usual_difficulty(config.dataset) if given is None else given


def _usual_prompt(config: Any, given: str | None) -> str:
    if given is not None:
        return given
    if config.dataset.startswith(datasets.REASONING_GYM):
        from tinsmith.envs.reasoning_gym import PROMPT

        return PROMPT
    return "" if config.dataset == datasets.ARITHMETIC else USUAL_PROMPT


@chz.chz
class MathConfig(EnvConfig):
    dataset: str = chz.field(
        default=datasets.ARITHMETIC,
        munger=lambda self, given: datasets.resolve(given),
        doc=f"which questions: {', '.join(datasets.NAMES)}, {datasets.REASONING_GYM}<task>, a hub id, or a "
        "JSONL, Parquet or CSV file or a directory of them",
    )
    subset: str | None = chz.field(
        default=None,
        doc="a part of the dataset: the subject for hendrycks, minerva and math500, the split for nemotron "
        "(None is high_part02), the language for dapo (None is all), the configuration of a hub dataset",
    )
    seed: int = chz.field(default=0, doc="decides which problems are held out")
    max_tokens: int = chz.field(
        default=None,
        x_type=int | None,
        munger=_usual_tokens,
        doc=f"most tokens the policy may say in one turn; None is {ARITHMETIC_TOKENS} for arithmetic and "
        f"{USUAL_TOKENS} for any other dataset",
    )
    prompt: str | None = chz.field(
        default=None,
        munger=_usual_prompt,
        doc="put after every question; None asks for the form of answer the grader reads best (nothing for "
        "arithmetic), an empty one adds nothing",
    )
    system: str | None = chz.field(default=None, doc="system message before every question")
    question: str | None = chz.field(
        default=None, doc="column of the questions; None is the dataset's own"
    )
    answer: str | None = chz.field(
        default=None, doc="column of the answers; None is the dataset's own"
    )
    train_split: str | None = chz.field(
        default=None, doc="split to train on; None is the dataset's own"
    )
    eval_split: str | None = chz.field(
        default=None, doc="split to evaluate on; None is the dataset's own, or a share held out"
    )
    held_out: float = chz.field(
        default=0.1,
        doc="problems kept for evaluation where the dataset has no split for it: up to 1 a share (1 is all of "
        "them), above 1 a number",
    )
    limit: int | None = chz.field(
        default=None,
        doc="most training problems, chosen by env.seed; None takes all, and makes 2000 of reasoning_gym",
    )
    difficulty: str | None = chz.field(
        default=None,
        munger=_usual_difficulty,
        doc="difficulties wanted, as values and ranges such as 0/8,1/8 or 9-10, or all; None is 0/8,1/8 for "
        "polaris and all for any other dataset",
    )
    smallest: int = chz.field(default=0, doc="arithmetic: smallest number")
    largest: int = chz.field(default=99, doc="arithmetic: largest number")
    operators: tuple[str, ...] = chz.field(
        default=("+",), doc="arithmetic: signs among + - *, separated by commas"
    )
    task_args: str = chz.field(
        default="", doc="reasoning_gym: settings of the task, as name=value,name=value or JSON"
    )

    @chz.validate
    def _check_dataset(self) -> None:
        datasets.check_name(self.dataset)
        datasets.check_choices(self.dataset, self.subset, self.difficulty)
        if self.dataset.startswith(datasets.REASONING_GYM):
            from tinsmith.envs.reasoning_gym import parse_args

            check(
                bool(self._task),
                "env.dataset=reasoning_gym:<task> must name a task, such as chain_sum.",
            )
            parse_args(self.task_args)

    @chz.validate
    def _check_numbers(self) -> None:
        from tinsmith.envs.arithmetic import OPERATORS

        check(self.held_out >= 0, f"env.held_out must be at least 0 (got {self.held_out}).")
        check(
            self.held_out <= 1 or self.held_out == int(self.held_out),
            f"env.held_out must be a share up to 1 or a whole number of problems (got {self.held_out}).",
        )
        check(
            self.limit is None or self.limit >= 1,
            f"env.limit must be at least 1, or None (got {self.limit}).",
        )
        check(
            self.smallest < self.largest,
            f"env.smallest must be below env.largest (got {self.smallest} and {self.largest}).",
        )
        for sign in self.operators or ("",):
            if sign not in OPERATORS:
                raise ConfigError(one_of("env.operators", sign, list(OPERATORS)))
        check(
            len(set(self.operators)) == len(self.operators),
            f"env.operators must not name a sign twice (got {','.join(self.operators)}).",
        )

    @property
    def _task(self) -> str:
        return self.dataset.removeprefix(datasets.REASONING_GYM)

    def rows(self, split: Split) -> list[Row]:
        """The problems of one split; loading them may take a while the first time."""
        train, held_out = self._splits
        return held_out if split == "eval" else train

    @functools.cached_property
    def _splits(self) -> tuple[list[Row], list[Row]]:
        if self.dataset == datasets.ARITHMETIC:
            from tinsmith.envs import arithmetic
            from tinsmith.envs.datasets.split import take

            train, held_out = arithmetic.rows(
                self.seed,
                largest=self.largest,
                smallest=self.smallest,
                operators=self.operators,
                held_out=self.held_out,
            )
            return take(train, self.limit, self.seed), held_out
        if self.dataset.startswith(datasets.REASONING_GYM):
            from tinsmith.envs import reasoning_gym

            return reasoning_gym.rows(
                self._task, self.task_args, self.seed, self.limit, self.held_out
            )
        from tinsmith.envs.datasets.load import Wanted, load

        return load(
            Wanted(
                dataset=self.dataset,
                subset=self.subset,
                seed=self.seed,
                question=self.question,
                answer=self.answer,
                train_split=self.train_split,
                eval_split=self.eval_split,
                held_out=self.held_out,
                limit=self.limit,
                difficulty=self.difficulty,
            )
        )

    def grader(self) -> Grader:
        """What decides whether a reply to one of the rows is right; it is given `Row.expected`."""
        if self.dataset == datasets.ARITHMETIC:
            from tinsmith.envs.grading.numbers import grade_integer

            return grade_integer
        if self.dataset.startswith(datasets.REASONING_GYM):
            from tinsmith.envs.reasoning_gym import GymGrader

            return GymGrader(self._task, self.task_args)
        from tinsmith.envs.grading.math import grade_math

        return grade_math

    def wording(self) -> Wording:
        """What stands around every question."""
        from tinsmith.envs.problem import Wording

        return Wording(self.prompt or "", self.system or "")

    def build(self, renderer: Renderer, seed: int, split: Split) -> ProblemSource:
        from tinsmith.envs.problem import RowSource

        rows = self.rows(split)
        if split == "train" and not rows:
            raise ConfigError(
                "no problem is left to train on: env.held_out keeps them all for evaluation. Lower it."
            )
        order = self.seed if split == "eval" else seed
        return RowSource(rows, renderer, self.grader(), order, self.wording())
