"""The view without a terminal: a line a step, and one for every start, evaluation, save and warning."""

from __future__ import annotations

from tinsmith.cli import panel
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import duration, number, share
from tinsmith.records.files import Json
from tinsmith.runs.follow import Snapshot

SHARES = (("correct", "correct"), ("cut_off", "cut off"))
LAST_WORDS = ("finished", "stopped", "failed")  # the summary says these


class LineView:
    """Turns snapshots into the lines that are new in them.

    `since` leaves out what was written earlier, such as the steps before a run was resumed; without
    it everything this attempt of the run wrote is told.
    """

    def __init__(self, since: float | None = None) -> None:
        self._since = since
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
        if "reward" in line:
            lines.append(step_line(line, snapshot))
        if "eval/reward" in line:
            problems = (
                f" over {line['eval/problems']:.0f} problems" if "eval/problems" in line else ""
            )
            lines.append(
                f"held out after step {line['step']}: reward {line['eval/reward']:.2f}{problems}"
            )
        for reason in panel.concerns_of(line):
            name = reason.split(" ", 1)[0]
            if name not in self._concerns:  # once: what stays odd need not be said every step
                self._concerns.add(name)
                lines.append(f"look at step {line['step']}: {reason}")
        return lines


def step_line(line: Json, snapshot: Snapshot) -> str:
    """step 17/100 | reward 0.71 | correct 71 % | mixed 46 of 100 | kl 0.0004 | 4.1 s | 5m40s left."""
    info = snapshot.info
    total = info.total_steps if info else 0
    parts = [f"step {line['step']}/{total}", f"reward {line['reward']:.2f}"]
    parts += [f"{name} {share(line[key])}" for key, name in SHARES if key in line]
    kinds = [line.get(f"groups/{kind}", 0) for kind in ("mixed", "all_right", "all_wrong")]
    if sum(kinds):
        parts.append(f"mixed {kinds[0]:.0f} of {sum(kinds):.0f}")
    parts += [f"{name} {number(line[name])}" for name in ("kl", "entropy") if name in line]
    if "time/step" in line:
        parts.append(f"{line['time/step']:.1f} s")
        left = (total - line["step"]) * (panel.seconds_a_step(snapshot) or line["time/step"])
        parts += [f"{duration(left)} left"] if left > 0 else []
    return " | ".join(parts)
