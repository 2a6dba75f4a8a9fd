"""`tinsmith envs`: which environments and datasets there are, and whether their graders grade as they must."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tinsmith.cli.options import run_command
from tinsmith.cli.terminal import clean
from tinsmith.errors import ConfigError, one_of

if TYPE_CHECKING:
    from tinsmith.envs import MathConfig
    from tinsmith.envs.grading.check import Report

USUAL_LIMIT = 200
WIDTH = 72  # characters of an example that are shown

# dataset -> what it is; where it comes from is in envs/datasets/table.py
DATASETS: dict[str, str] = {
    "arithmetic": "sums (and differences, products) of small numbers",
    "gsm8k": "grade-school word problems, numbers as answers",
    "math500": "500 competition problems (MATH), LaTeX answers",
    "hendrycks": "competition problems (MATH) without the MATH-500 ones",
    "minerva": "the test problems of MATH",
    "polaris": "hard problems chosen by how often a model solved them",
    "deepmath": "hard problems; LaTeX, numbers or Yes and No as answers",
    "nemotron": "problems from forums and textbooks, with expected answers",
    "olmo3": "the mathematics of Dolci-Think-RL",
    "dapo": "problems with whole numbers as answers",
    "aime": "AIME problems, whole numbers from 0 to 999",
}
GYM = "reasoning_gym:<task>"
OWN = "owner/name, file or directory"


def run(argv: list[str]) -> int:
    return run_command(envs, "envs", argv)


@click.group(invoke_without_command=True)
@click.pass_context
def envs(context: click.Context) -> None:
    """The environments and datasets that can be trained on. `tinsmith envs check NAME` tries a dataset's
    grader on right and wrong answers."""
    if context.invoked_subcommand is None:
        for line in listing():
            click.echo(line)


def listing() -> list[str]:
    """One line for each environment and each dataset."""
    from tinsmith.envs import ENVIRONMENTS
    from tinsmith.envs.datasets import NAMES
    from tinsmith.envs.datasets.table import SOURCES

    lines = ["environments (env=NAME):"]
    for name, config in ENVIRONMENTS.items():
        purpose = (importlib.import_module(config.__module__).__doc__ or "").strip()
        lines.append(f"  {name}  {purpose.splitlines()[0] if purpose else ''}".rstrip())
    hub = {name: f"{source.hub} (extra: math)" for name, source in SOURCES.items()}
    rows = [(name, DATASETS.get(name, "problems"), hub.get(name, "nothing")) for name in NAMES]
    rows += [
        (GYM, "puzzles made by reasoning-gym, scored by its own rules", "extra: reasoning-gym"),
        (OWN, "your own: env.question=... env.answer=... name the columns", "extra: math"),
    ]
    lines += ["", "datasets of MathConfig (env.dataset=NAME), and what they need:", *_columns(rows)]
    lines += [
        "",
        "`tinsmith envs check NAME` tries the grader on a dataset's right and wrong answers.",
    ]
    return lines


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


@envs.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--limit",
    type=click.IntRange(1, 10**7),
    default=USUAL_LIMIT,
    show_default=True,
    help="Most rows to check, chosen without regard to order.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def check(name: str, settings: tuple[str, ...], limit: int, as_json: bool) -> int:
    """Grade the right answers of a dataset NAME, which must score 1, and wrong ones made from them, which
    must score 0. Settings are those of the environment, such as subset=algebra. Exit code 0 only if every
    grade is as it must be."""
    from tinsmith.envs.grading.check import sample

    config = configured(name, settings)
    rows = sample([*config.rows("train"), *config.rows("eval")], limit)
    if not rows:
        raise ConfigError(f"{config.dataset} has no rows with these settings.")
    report = asyncio.run(_checked(config, rows))
    if as_json:
        click.echo(json.dumps(_as_json(config.dataset, report)))
    else:
        for line in table(config.dataset, report):
            click.echo(line)
    return 0 if report.passed else 1


def configured(name: str, settings: Sequence[str]) -> MathConfig:
    """The environment of a dataset (or of an environment's name) with the settings that were typed."""
    from tinsmith.cli.config import parse
    from tinsmith.envs import ENVIRONMENTS, MathConfig
    from tinsmith.envs.datasets import NAMES

    known = [*ENVIRONMENTS, *NAMES]
    if name not in known and not any(mark in name for mark in "/.:"):
        raise ConfigError(one_of("NAME", name, known))
    first = f"env={name}" if name in ENVIRONMENTS else f"env.dataset={name}"
    env = parse([first, *settings]).env
    if not isinstance(env, MathConfig):
        raise ConfigError(f"{name} has no rows to check; choose a dataset of MathConfig.")
    return env


async def _checked(config: MathConfig, rows: Sequence[Any]) -> Report:
    from tinsmith.envs.grading.check import check_rows
    from tinsmith.envs.grading.math import grade_math

    grade = config.grader()
    if grade is grade_math:
        await grade("\\boxed{x+x}", "2x")  # starts a worker, so that no grade waits for it
    return await check_rows(rows, grade, replies_for(config.dataset))


def replies_for(dataset: str) -> Any:
    """How an answer is given in a reply to this dataset: as its prompt asks for it."""
    from tinsmith.envs.datasets import ARITHMETIC, REASONING_GYM

    if dataset.startswith(REASONING_GYM):
        return lambda answer: [f"<answer>{answer}</answer>"]
    if dataset == ARITHMETIC:
        return lambda answer: [answer, f"It is {answer}."]
    return lambda answer: [f"\\boxed{{{answer}}}"]


def table(dataset: str, report: Report) -> list[str]:
    """The report for people."""
    from tinsmith.envs.grading.check import EXAMPLES, RIGHT

    kinds = sorted(report.tallies, key=lambda kind: (kind != RIGHT, kind))
    rows = [("", "graded", "must score", "as it must")]
    for kind in kinds:
        tally = report.tallies[kind]
        must = "1" if kind == RIGHT else "0"
        rows.append((kind, str(tally.graded), must, str(tally.as_it_must)))
    checked = report.rows - report.without_answer
    lines = [f"{clean(dataset)}: {checked} rows checked", *_columns(rows)]
    if report.without_answer:
        lines.append(f"{report.without_answer} rows have no model answer and were left out.")
    lines.append(f"slowest grade: {report.slowest_seconds:.2f} s")
    for failure in report.failures[:EXAMPLES]:
        done = "was refused" if failure.kind == RIGHT else "was accepted"
        note = f" ({clean(failure.note)})" if failure.note else ""
        lines.append(
            f"  {clean(failure.row, 40)}, {failure.kind}: {clean(failure.reply, WIDTH)} {done}; "
            f"expected {clean(failure.expected, WIDTH)}{note}"
        )
    if len(report.failures) > EXAMPLES:
        lines.append(f"  and {len(report.failures) - EXAMPLES} more")
    if not checked:
        lines.append("Nothing could be checked.")
    else:
        lines.append("All as it must be." if report.passed else "The grader did not do as it must.")
    return lines


def _as_json(dataset: str, report: Report) -> dict[str, Any]:
    return {"dataset": dataset, "passed": report.passed, **asdict(report)}
