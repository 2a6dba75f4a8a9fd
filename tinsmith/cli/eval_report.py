"""What an evaluation says on the terminal: a line while it runs, a table and some rollouts at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from tinsmith.cli.examples import answer, question
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import bar, duration, number, share
from tinsmith.records.evaluation import EvalResult
from tinsmith.records.rollout import RolloutRecord
from tinsmith.rl.evaluate import passed

BAR = 30
LINE_SECONDS = 5.0  # between two lines where there is no terminal
QUESTION_WIDTH = 60
ANSWER_WIDTH = 40


class ProgressLine:
    """How many rollouts are done: one line that is written over, or now and then a new one."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = clock()
        self._written = self._began - LINE_SECONDS
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        took = duration(now - self._began)
        if self._stream.isatty():
            line = f"{bar(done, total, BAR)}  {done}/{total} rollouts  {took}"
            self._stream.write(f"\r\x1b[K{line}")
            self._drawn = True
        elif done == total or now - self._written >= LINE_SECONDS:
            self._written = now
            self._stream.write(f"{done}/{total} rollouts, {took}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that what follows begins at the margin."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


def report(result: EvalResult, rollouts: Sequence[RolloutRecord], shown: int) -> list[str]:
    """The table, and as many right and wrong rollouts as asked for."""
    values = result.metrics
    problems, k = int(values["eval/problems"]), int(values["eval/samples"])
    task = result.config.get("env.dataset") or result.config.get("env")
    tried = f"{problems} held-out problem{'s' if problems != 1 else ''}"
    tried += f", {k} rollouts each" if k > 1 else ""
    lines = [
        " · ".join(
            [
                clean(title(result)),
                clean(str(task)),
                tried,
                f"temperature {result.config['temperature']:g}",
            ]
        )
    ]
    lines += _rates(result, k)
    if "eval/tokens" in values:
        said = f"{number(values['eval/tokens'])} a rollout"
        lines.append(f"tokens   {said}, {share(values['eval/cut_off'])} cut off")
    failed = int(values["eval/failed_rollouts"])
    lines.append(f"failed   {failed} of {problems * k} rollouts")
    if failed:
        lines.append(f"         {clean(_commonest_error(rollouts), 200)}")
    took = f"{result.seconds:.1f} s" if result.seconds < 60 else duration(result.seconds)
    lines.append(f"time     {took}, {number(problems * k / result.seconds)} rollouts/s")
    return lines + _samples(rollouts, shown)


def title(result: EvalResult) -> str:
    if result.kind == "run":
        return f"{result.name} step {result.step}"
    return f"{result.model} at {result.name}" if result.kind == "endpoint" else result.name


def _rates(result: EvalResult, k: int) -> list[str]:
    """Reward and pass rates with their intervals, in columns."""
    lines: list[str] = []
    for label, name, show in (
        ("reward", "eval/reward", lambda value: f"{value:.3f}"),
        ("pass@1", "eval/pass@1", _percent),
        (f"pass@{k}", "eval/pass@k", _percent),
    ):
        if name not in result.metrics:
            continue
        line = f"{label:<9}{show(result.metrics[name]):<8}"
        if f"{name}_low" in result.metrics:
            low, high = result.metrics[f"{name}_low"], result.metrics[f"{name}_high"]
            line += f"({show(low)} to {show(high)})"
            line += "" if lines else "   with 95 % confidence"
        lines.append(line.rstrip())
    return lines


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _commonest_error(rollouts: Sequence[RolloutRecord]) -> str:
    errors = [record.error for record in rollouts if record.error is not None]
    return max(set(errors), key=lambda error: (errors.count(error), error)) if errors else ""


def _samples(rollouts: Sequence[RolloutRecord], shown: int) -> list[str]:
    ended = [record for record in rollouts if record.reward is not None]
    lines: list[str] = []
    for label, wanted in (("right", True), ("wrong", False)):
        matching = [r for r in ended if passed(r.reward or 0.0, r.metrics) is wanted]
        firsts = {record.problem_id: record for record in reversed(matching)}
        for record in sorted(firsts.values(), key=matching.index)[:shown]:
            lines.append(f"{label:<9}{_sample(record, wanted)}")
    return lines


def _sample(record: RolloutRecord, right: bool) -> str:
    said = f'{clean(question(record), QUESTION_WIDTH)}  it says "{clean(answer(record), ANSWER_WIDTH)}"'
    logs = record.turns[-1].get("logs", {}) if record.turns else {}
    expected = logs.get("expected")
    return said if right or not expected else f'{said}, right is "{clean(expected, ANSWER_WIDTH)}"'
