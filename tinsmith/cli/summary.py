"""The last words about a run: what it reached, where it is, what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path

from tinsmith.cli.examples import learned
from tinsmith.cli.figures import best_point, pass_rates
from tinsmith.cli.panel import setting
from tinsmith.cli.terminal import clean
from tinsmith.errors import RunError
from tinsmith.records.layout import RunLayout
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.runs.follow import Snapshot
from tinsmith.runs.manager import RunManager

EXIT_CODES = {RunStatus.FINISHED: 0, RunStatus.STOPPED: 130}
LOG_LINES = 8


def exit_code(status: RunStatus) -> int:
    """0 finished, 130 stopped on request, 1 for everything else."""
    return EXIT_CODES.get(status, 1)


def summary(snapshot: Snapshot, reader: RunReader) -> list[str]:
    """The lines printed when a run is over."""
    log = reader.log(tail=LOG_LINES)
    if snapshot.info is None:
        return _never_started(snapshot.directory, log)
    lines = _outcome(snapshot, snapshot.info, log)
    if snapshot.info.status is RunStatus.FAILED and not snapshot.steps:
        return lines  # nothing was learnt, and the same command would fail again
    if progress := achievement(snapshot):
        lines.append(progress)
    lines += _held_out(snapshot)
    if len(tried := snapshot.evaluations) > 1:
        before, after = (
            reader.rollouts(line["step"], split="eval") for line in (tried[0], tried[-1])
        )
        lines += [f"example  {words}"] if (words := learned(before, after)) else []
    lines.append(f"run      {snapshot.directory}")
    return lines + _next(snapshot.directory, snapshot.info)


def achievement(snapshot: Snapshot) -> str | None:
    """reward 0.18 → 0.97 in 40 steps: on what was held out when it was tried twice."""
    name = snapshot.headline
    steps, points = snapshot.steps, snapshot.evaluations
    if not steps:
        return None
    took = f"in {steps[-1]['step']} step{'s' if steps[-1]['step'] != 1 else ''}"
    what = "problems" if name == "reward" else "conversations"
    tried = [one for one in points if f"eval/{name}" in one]
    if len(tried) > 1:
        values = [one[f"eval/{name}"] for one in tried]
        counted = tried[-1].get(f"eval/{what}")
        count = f"{counted:.0f} " if counted else ""
        where = f"mean over {count}held-out {what}, before and after"
    else:
        values = [one[name] for one in steps if name in one]
        where = f"training {what}, first and last step"
    return f"{name} {values[0]:.2f} → {values[-1]:.2f} {took} ({where})" if values else None


def _held_out(snapshot: Snapshot) -> list[str]:
    """Pass rates after the last step, and the best of the evaluations when it is not the last."""
    if not snapshot.evaluations:
        return []
    words = [*pass_rates(snapshot.evaluations[-1]), best_point(snapshot)]
    shown = [one for one in words if one]
    return [f"held out {' · '.join(shown)}"] if shown else []


def _outcome(snapshot: Snapshot, info: RunInfo, log: list[str]) -> list[str]:
    name, message = snapshot.directory.name, clean(info.message)
    because = f": {message}" if message else "."
    where = f"log      {RunLayout(snapshot.directory).latest_log}"
    match info.status:
        case RunStatus.FAILED:
            return [f"{name} failed at step {info.step}/{info.total_steps}{because}", where]
        case RunStatus.LOST:
            last = [f"  {clean(line)}" for line in log]
            return [f"{name} is lost at step {info.step}/{info.total_steps}{because}", where, *last]
        case RunStatus.STOPPED:
            return [f"{name} stopped at step {info.step}/{info.total_steps}{because}"]
    return []


def _never_started(directory: Path, log: list[str]) -> list[str]:
    said = [f"  {clean(line)}" for line in log] or ["  (it printed nothing)"]
    return [
        f"{directory.name} ended before its first record.",
        f"log      {RunLayout(directory).latest_log}",
        *said,
    ]


# ── commands ─────────────────────────────────────────────────────────────────────────────────


def _next(directory: Path, info: RunInfo) -> list[str]:
    name = reference(directory)
    if info.status is RunStatus.FINISHED:
        commands = [
            f"tinsmith runs show {name}",
            f"tinsmith chat {name}",
            another_command(info),
        ]
    else:
        commands = [resume_command(directory, info), f"tinsmith runs show {name}", "tinsmith runs"]
    first = "next     " if info.status is RunStatus.FINISHED else "resume   "
    return [f"{first if index == 0 else ' ' * 9}{line}" for index, line in enumerate(commands)]


def reference(directory: Path) -> str:
    """What to type after `tinsmith runs show`: the run's name, or its path when the name is not enough."""
    try:
        by_name = RunManager().get(directory.name).directory
    except RunError:
        by_name = None
    known = by_name is not None and by_name.resolve() == directory.resolve()
    return shlex.quote(directory.name if known else str(directory))


def resume_command(directory: Path, info: RunInfo) -> str:
    """The command that goes on where this run ended: the same settings in the same directory."""
    return shlex.join([*_without(info.command, "log_path"), f"log_path={directory}"])


def another_command(info: RunInfo) -> str:
    """The same training once more from another seed, in a directory of its own."""
    seed = setting(info, "seed")
    other = int(seed) + 1 if isinstance(seed, int) else 1
    return shlex.join([*_without(info.command, "log_path", "seed"), f"seed={other}"])


def _without(command: list[str], *keys: str) -> list[str]:
    return [word for word in command if not word.startswith(tuple(f"{key}=" for key in keys))]
