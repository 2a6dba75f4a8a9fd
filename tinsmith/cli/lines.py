"""The view without a terminal: a line a step, and one for every start, evaluation, save and warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.cli import figures, panel
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import duration, number, share
from tinsmith.records import metrics as declared
from tinsmith.records.files import Json
from tinsmith.records.rollout import RolloutRecord
from tinsmith.runs.follow import Snapshot, is_step

SHARES = (("correct", "correct"), ("cut_off", "cut off"))
# What is told only when it is not 0.
COUNTS = (
    ("failed_rollouts", "failed"),
    ("retried_rollouts", "tried again"),
    ("groups/resampled", "resampled"),
    ("groups/stale", "too old"),
)
LAST_WORDS = ("finished", "stopped", "failed")  # the summary says these


class LineView:
    """Turns snapshots into the lines that are new in them.

    `since` leaves out what was written earlier, such as the steps before a run was resumed; without
    it everything this attempt of the run wrote is told. `rollouts` gives those of a step, to say why
    some failed.
    """

    def __init__(
        self,
        since: float | None = None,
        rollouts: Callable[[int], Sequence[RolloutRecord]] | None = None,
    ) -> None:
        self._since = since
        self._rollouts = rollouts
        self._introduced = False
        self._told: set[tuple[object, ...]] = set()
        self._concerns: set[str] = set()

    def update(self, snapshot: Snapshot) -> list[str]:
        info = snapshot.info
        if info is None:
            return []
        lines = [] if self._introduced else self._introduction(snapshot)
        self._introduced = True
        since = info.started_at if self._since is None else self._since
        told: list[tuple[float, str]] = []
        for line in snapshot.metrics:
            at = line.get("time/at", 0.0)
            if at >= since and self._is_new("metrics", line.get("step"), at):
                told += [(at, words) for words in self._measured(snapshot, line)]
        for event in snapshot.events:
            at = event.get("at", 0.0)
            if event.get("kind") in LAST_WORDS:
                continue
            if at >= since and self._is_new(event.get("kind"), event.get("step"), at):
                told += [(at, words)] if (words := panel.describe(event)) else []
        return lines + [words for _, words in sorted(told, key=lambda pair: pair[0])]

    def _is_new(self, *key: object) -> bool:
        new = key not in self._told
        self._told.add(key)
        return new

    def _introduction(self, snapshot: Snapshot) -> list[str]:
        assert snapshot.info is not None
        given = "  ".join(clean(item) for item in snapshot.info.changed)
        lines = [panel.title(snapshot), f"run {snapshot.directory}"]
        if given:
            lines.insert(1, f"changed {given}")
        return lines

    def _measured(self, snapshot: Snapshot, line: Json) -> list[str]:
        lines: list[str] = []
        if is_step(line):
            lines.append(step_line(line, snapshot) + self._why(line))
        if f"eval/{snapshot.headline}" in line:
            lines.append(held_out_line(line, snapshot.headline))
        for name, reason in declared.concerns(line, snapshot.steps).items():
            if name not in self._concerns:  # once: what stays odd need not be said every step
                self._concerns.add(name)
                lines.append(f"look at step {line['step']}: {figures.in_words(name, line, reason)}")
        return lines

    def _why(self, line: Json) -> str:
        troubled = line.get("failed_rollouts") or line.get("retried_rollouts")
        if self._rollouts is None or not troubled:
            return ""
        reason = figures.commonest_reason(self._rollouts(line["step"]))
        return f" | mostly: {reason}" if reason else ""


def step_line(line: Json, snapshot: Snapshot) -> str:
    """step 17/100 | reward 0.71 | correct 71 % | mixed 46 of 100 | kl 0.0004 | 4.1 s | 5m40s left."""
    info, name = snapshot.info, snapshot.headline
    total = info.total_steps if info else 0
    shown = f"{line[name]:.2f}" if name in line else "none"
    parts = [f"step {line['step']}/{total}", f"{name} {shown}"]
    parts += [f"{label} {share(line[key])}" for key, label in SHARES if key in line]
    kinds = [line.get(kind, 0) for kind in declared.GROUPS]
    if sum(kinds):
        parts.append(f"mixed {kinds[0]:.0f} of {sum(kinds):.0f}")
    parts += [f"{line[key]:.0f} {label}" for key, label in COUNTS if line.get(key)]
    parts += [f"{key} {number(line[key])}" for key in ("kl", "kl_base", "entropy") if key in line]
    if line.get("staleness_max"):
        parts.append(f"staleness {number(line.get('staleness', 0.0))}")
    if "time/waiting" in line:
        parts.append(f"waiting {share(line['time/waiting'])}")
    if "lr" in line and len({one["lr"] for one in snapshot.steps if "lr" in one}) > 1:
        parts.append(f"lr {number(line['lr'])}")
    if "time/step" in line:
        parts.append(f"{line['time/step']:.1f} s")
        left = (total - line["step"]) * (panel.seconds_a_step(snapshot) or line["time/step"])
        parts += [f"{duration(left)} left"] if left > 0 else []
    return " | ".join(parts)


def held_out_line(line: Json, name: str) -> str:
    """held out after step 10: reward 0.52 over 200 problems | pass@1 52 % [45–59 %]."""
    words = f"held out after step {line['step']}: {name} {line[f'eval/{name}']:.2f}"
    for key, what in (("eval/problems", "problems"), ("eval/conversations", "conversations")):
        if key in line:
            words += f" over {line[key]:.0f} {what}"
    return " | ".join([words, *figures.pass_rates(line)])
