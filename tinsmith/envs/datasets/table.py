"""Named datasets: where each lies on the hub, its splits and its columns. Adding one is adding a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tinsmith.envs.datasets.text import (
    after_hashes,
    final_answer,
    last_boxed,
    plain,
    without_role,
    without_wrapper,
)

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True)
class Source:
    """One dataset. Without `held_out` splits, a share of the training problems is held out."""

    hub: str
    question: str  # the column, `a.b` for the field b of the column a
    answer: str
    configs: tuple[str | None, ...] = (None,)
    train: tuple[str, ...] = ("train",)
    held_out: tuple[str, ...] = ()
    read_question: Callable[[str], str] = plain
    read_answer: Callable[[str], str | None] = plain
    part: Literal["config", "split", "column", ""] = ""  # what env.subset chooses
    parts: tuple[str, ...] = ()  # the choices, where they are known
    part_column: str | None = None  # tells the parts apart
    difficulty: str | None = None  # the column
    usual_difficulty: str | None = None
    where: tuple[str, str] | None = None  # only rows whose column is, or holds, this
    without: tuple[str, ...] = ()  # datasets whose problems are left out


SOURCES: dict[str, Source] = {
    "gsm8k": Source(
        hub="openai/gsm8k",
        configs=("main",),
        held_out=("test",),
        question="question",
        answer="answer",
        read_answer=after_hashes,
    ),
    "math500": Source(
        hub="HuggingFaceH4/MATH-500",
        train=("test",),
        question="problem",
        answer="answer",
        part="column",
        parts=SUBJECTS,
        part_column="subject",
        difficulty="level",
    ),
    "hendrycks": Source(
        hub="EleutherAI/hendrycks_math",
        configs=SUBJECTS,
        train=("train", "test"),
        question="problem",
        answer="solution",
        read_answer=last_boxed,
        part="config",
        parts=SUBJECTS,
        part_column="type",
        difficulty="level",
        without=("math500",),
    ),
    "minerva": Source(
        hub="EleutherAI/hendrycks_math",
        configs=SUBJECTS,
        train=("test",),
        question="problem",
        answer="solution",
        read_answer=last_boxed,
        part="config",
        parts=SUBJECTS,
        part_column="type",
        difficulty="level",
    ),
    "polaris": Source(
        hub="POLARIS-Project/Polaris-Dataset-53K",
        question="problem",
        answer="answer",
        difficulty="difficulty",
        usual_difficulty="0/8,1/8",
    ),
    "deepmath": Source(
        hub="zwhe99/DeepMath-103K",
        question="question",
        answer="final_answer",
        difficulty="difficulty",
    ),
    "nemotron": Source(
        hub="nvidia/Nemotron-Math-v2",
        train=("high_part02",),
        question="problem",
        answer="expected_answer",
        part="split",
        parts=("low", "medium", "high_part00", "high_part01", "high_part02"),
    ),
    "olmo3": Source(
        hub="allenai/Dolci-Think-RL-32B",
        question="prompt",
        answer="ground_truth",
        read_question=without_role,
        where=("dataset", "math"),
    ),
    "dapo": Source(
        hub="open-r1/DAPO-Math-17k-Processed",
        configs=("all",),
        question="prompt",
        answer="solution",
        read_question=without_wrapper,
        part="config",
        parts=("all", "en", "cn"),
    ),
    "aime": Source(
        hub="AI-MO/aimo-validation-aime",
        question="problem",
        answer="answer",
    ),
}

# What a dataset without a line of its own may call its columns, in the order they are tried.
QUESTIONS = ("question", "problem", "prompt")
ANSWERS = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")


def unnamed(path: str) -> Source:
    """A hub dataset or a path: columns and splits are the user's, or found when it is read."""
    return Source(
        hub=path,
        question="",
        answer="",
        train=(),
        read_answer=final_answer,
        part="config",
        difficulty="difficulty",
    )
