"""Draws a run's snapshot as the live view: sections of lines that fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from tinsmith.cli import examples
from tinsmith.cli.figures import LABEL, WARNING, figures, labelled, plain
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import bar, duration
from tinsmith.records.files import Json
from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.runs.follow import Snapshot

# The phases before the first measurement, as the trainer names them, and what each one brings.
STAGES = {"connect": "service", "load model": "model and problems"}
KEYS = "r rollouts · l log · q leave (the run goes on) · s stop"


class Body(StrEnum):
    """What fills the lower part of the view."""

    EXAMPLES = "examples"
    ROLLOUTS = "rollouts"
    LOG = "log"


@dataclass(frozen=True)
class Frame:
    """All that one drawing needs beside the snapshot itself."""

    width: int
    height: int
    now: float
    body: Body = Body.EXAMPLES
    rollouts: Sequence[RolloutRecord] = ()
    log: Sequence[str] = ()
    prompt: str = ""  # a question or a notice in place of the keys


def draw(snapshot: Snapshot, frame: Frame) -> Group:
    """The whole view as lines that never exceed the terminal's height."""
    head = [*_head(snapshot, frame), Rule(style="dim"), *_progress(snapshot, frame)]
    middle = figures(snapshot, frame.width, frame.rollouts)
    foot = _notes(snapshot)
    blocks: list[list[RenderableType]] = [[*head]]
    if middle:
        blocks.append([Rule(style="dim"), *middle])
    used = sum(len(block) for block in blocks) + len(foot) + 2
    body = _body(snapshot, frame, max(frame.height - used - 1, 0))
    if body:
        blocks.append([Rule(style="dim"), *body])
    if foot:
        blocks.append([Rule(style="dim"), *foot])
    lines = [line for block in blocks for line in block]
    return Group(*lines[: max(frame.height - 1, 1)])


def _head(snapshot: Snapshot, frame: Frame) -> list[Text]:
    lines = [labelled("run", title(snapshot))]
    if snapshot.info is not None:
        lines += _changed(snapshot.info.changed, frame.width)
    if frame.prompt:
        lines.append(labelled("keys", frame.prompt, style=f"bold {WARNING}"))
    else:
        lines.append(labelled("keys", KEYS, style="dim"))
    return lines


def _changed(given: Sequence[str], width: int) -> list[Text]:
    """The settings that were given, on as many lines as they need."""
    if not given:
        return [labelled("changed", "nothing: every setting is the default")]
    rows = [""]
    for item in map(clean, given):
        if rows[-1] and LABEL + len(rows[-1]) + 2 + len(item) > width:
            rows.append("")
        rows[-1] += f"  {item}" if rows[-1] else item
    return [labelled("" if index else "changed", row) for index, row in enumerate(rows)]


def title(snapshot: Snapshot) -> str:
    """calm-anvil · arithmetic · tinsmith/tiny + LoRA r32 · this machine."""
    parts = [snapshot.directory.name]
    if (info := snapshot.info) is not None:
        task = setting(info, "env.dataset") or setting(info, "env")
        model, rank = setting(info, "model_name"), setting(info, "lora_rank")
        parts += [str(task)] if task and not isinstance(task, dict) else []
        parts += [f"{model} + LoRA r{rank}" if rank else str(model)] if model else []
        where = "this machine" if info.service == "local" else info.service
        parts += [where] if where else []
    return " · ".join(clean(part) for part in parts)


def setting(info: RunInfo, key: str) -> Any:
    """A configured value by its dotted key, whether the config is stored flat or nested."""
    if key in info.config:
        return info.config[key]
    value: Any = info.config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


# ── the step ─────────────────────────────────────────────────────────────────────────────────


def _progress(snapshot: Snapshot, frame: Frame) -> list[Text]:
    info = snapshot.info
    if info is None:
        return [plain("starting…")]
    if not snapshot.metrics and not info.status.over:
        return [_checklist(snapshot), _this_step(snapshot, frame, 20)]
    width = max(min(frame.width - 52, 60), 8)
    left = remaining(snapshot, frame.now)
    timing = [f"{duration(left)} left"] if left is not None else []
    if pace := seconds_a_step(snapshot):
        timing.append(f"{pace:.1f} s/step")
    status = "" if info.status is RunStatus.RUNNING else f"  {info.status}"
    step = plain("").append(f"step {info.step}/{info.total_steps}".ljust(13), style="bold")
    step.append(bar(info.step, info.total_steps, width), style="cyan")
    step.append(f"  {' · '.join(timing)}{status}")
    return [step, _this_step(snapshot, frame, width)]


def _checklist(snapshot: Snapshot) -> Text:
    """How far a run has come that has measured nothing yet."""
    ready = any(event.get("kind") == "ready" for event in snapshot.events)
    phase = snapshot.progress.phase if snapshot.progress else ""
    done = len(STAGES) if ready else list(STAGES).index(phase) if phase in STAGES else 0
    text = plain("start".ljust(13))
    for index, stage in enumerate(STAGES.values()):
        text.append("✓ " if index < done else "… ", style="green" if index < done else "dim")
        text.append(f"{stage}   ")
    return text


def _this_step(snapshot: Snapshot, frame: Frame, width: int) -> Text:
    progress = snapshot.progress
    text = plain("this step".ljust(13))
    if progress is None:
        return text.append("–", style="dim")
    text.append(clean(progress.phase))
    if progress.total > 0:
        text.append(f" {progress.done}/{progress.total} ")
        text.append(bar(progress.done, progress.total, min(width, 20)), style="cyan")
    steps = snapshot.steps
    if steps and "time/at" in steps[-1] and not snapshot.status.over:
        text.append(f"  {max(frame.now - steps[-1]['time/at'], 0):.1f} s", style="dim")
    return text


def seconds_a_step(snapshot: Snapshot) -> float | None:
    """The mean of the last ten steps."""
    times = [line["time/step"] for line in snapshot.steps[-10:] if "time/step" in line]
    return sum(times) / len(times) if times else None


def remaining(snapshot: Snapshot, now: float) -> float | None:
    """Seconds until the last step should be done."""
    pace, info = seconds_a_step(snapshot), snapshot.info
    if pace is None or info is None or info.status.over:
        return None
    spent = now - snapshot.steps[-1].get("time/at", now)
    return max((info.total_steps - info.step) * pace - spent, 0.0)


# ── the lower part ───────────────────────────────────────────────────────────────────────────


def _body(snapshot: Snapshot, frame: Frame, room: int) -> list[Text]:
    if room <= 0:
        return []
    if frame.body is Body.LOG:
        tail = frame.log[-room:] or ["(the log is empty)"]
        return [plain(clean(line)) for line in tail]
    found = examples.groups(frame.rollouts)
    if not snapshot.steps:
        tried = examples.groups(frame.rollouts, split="eval")
        wrong_first = sorted((group[0] for group in tried), key=examples.is_right)
        return [examples.untrained(record, frame.width) for record in wrong_first[: min(room, 3)]]
    if frame.body is Body.ROLLOUTS:
        if not found:
            return [plain("(no rollouts yet)")]
        lines = [
            line
            for group in examples.telling(found, len(found))
            for line in examples.transcript(group, frame.width)
        ]
        return lines[:room]
    return [examples.row(group, frame.width) for group in examples.telling(found, min(room, 4))]


def _notes(snapshot: Snapshot) -> list[Text]:
    notes = [note for event in snapshot.events[-12:] if (note := describe(event))]
    if not notes:
        return []
    return [labelled("note", " · ".join(notes[-3:][::-1]))]


def describe(event: Json) -> str:
    """An event as a few words; empty for those the view shows otherwise."""
    kind, step = str(event.get("kind", "")), event.get("step", 0)
    message = clean(str(event.get("message") or ""))
    match kind:
        case "started" | "finished":
            return ""
        case "saved":
            return f"saved step {step}"
        case "resumed":
            return f"resumed after step {step}"
        case "ready":
            return message
        case "warned":
            return f"step {step}: {message}"
    return f"step {step}: {kind} {message}".rstrip()
