"""`tinsmith runs`: list your runs; show, watch or stop one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import click

from tinsmith.cli.figures import concerns, figure
from tinsmith.cli.options import run_command
from tinsmith.cli.panel import describe, setting, title
from tinsmith.cli.summary import achievement, resume_command
from tinsmith.cli.terminal import clean
from tinsmith.cli.words import ago, duration, number
from tinsmith.records.files import Json
from tinsmith.records.metrics import METRICS
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunStatus
from tinsmith.runs.follow import RunFollower, Snapshot
from tinsmith.runs.manager import GRACE_SECONDS, Run, RunManager

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for programs.")


def run(argv: list[str]) -> int:
    return run_command(runs, "runs", argv)


@click.group(invoke_without_command=True)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(min=1), help="How many."
)
@as_json
@click.pass_context
def runs(context: click.Context, limit: int, json_: bool) -> None:
    """List your runs, the newest first; or show, watch or stop one."""
    if context.invoked_subcommand is not None:
        return
    manager = RunManager()
    found = manager.list(limit=limit)
    if json_:
        _print_json([_as_json(run) for run in found])
    elif found:
        _print_table(found)
    else:
        click.echo("There are no runs yet. `tinsmith train` starts one.")


@runs.command()
@click.argument("name")
@as_json
def show(name: str, json_: bool) -> None:
    """Say what a run is, what it reached and where its files are."""
    run = RunManager().get(name)
    if json_:
        reader = RunReader(run.directory)
        fields = _as_json(run)
        fields["metrics"] = list(reader.metrics())
        fields["events"] = list(reader.events())
        fields["checkpoints"] = [asdict(checkpoint) for checkpoint in reader.checkpoints()]
        _print_json(fields)
    else:
        click.echo("\n".join(_description(run)))


@runs.command()
@click.argument("name")
def watch(name: str) -> int:
    """Watch a run as it goes; leaving (q or Ctrl-C) does not stop it."""
    from tinsmith.cli.live import watch

    return watch(RunManager().get(name).directory, child=False)


@runs.command()
@click.argument("name")
@click.option(
    "--grace-seconds",
    default=GRACE_SECONDS,
    show_default=True,
    type=click.FloatRange(min=0),
    help="How long it may take to save before it is ended.",
)
@as_json
def stop(name: str, grace_seconds: float, json_: bool) -> None:
    """Save and stop a run; the same command goes on with it later."""
    manager = RunManager()
    run = manager.get(name)
    if not json_ and not run.info.status.over:
        click.echo(f"{run.name}: saving and stopping (at most {duration(grace_seconds)})")
    run = manager.stop(name, grace_seconds=grace_seconds)
    if json_:
        _print_json(_as_json(run))
        return
    because = f": {clean(run.info.message)}" if run.info.message else ""
    click.echo(f"{run.name} is {run.info.status} at step {_steps(run)}{because}")
    click.echo(f"resume   {resume_command(run.directory, run.info)}")


# ── output ───────────────────────────────────────────────────────────────────────────────────


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _as_json(run: Run) -> dict[str, Any]:
    return {**asdict(run.info), "directory": str(run.directory)}


def _steps(run: Run) -> str:
    return f"{run.info.step}/{run.info.total_steps}"


def _print_table(found: list[Run]) -> None:
    head = ("name", "status", "step", "reward", "held out", "started", "task", "model")
    rows = [head, *(_row(run) for run in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _row(run: Run) -> tuple[str, ...]:
    snapshot = _snapshot(run)
    task = setting(run.info, "env.dataset") or setting(run.info, "env")
    return (
        clean(run.name, 40),
        run.info.status.value,
        _steps(run),
        _first_to_last(snapshot.steps, snapshot.headline),
        _first_to_last(snapshot.evaluations, f"eval/{snapshot.headline}"),
        ago(time.time() - run.info.created_at),
        clean(str(task), 24) if isinstance(task, str) else "–",
        clean(str(setting(run.info, "model_name") or "–"), 32),
    )


def _first_to_last(lines: list[Json], name: str) -> str:
    """0.18 → 0.97; what is no reward carries its name."""
    values = [line[name] for line in lines if name in line]
    if not values:
        return "–"
    label = "" if name.endswith("reward") else f"{name.removeprefix('eval/')} "
    words = f"{values[0]:.2f}" if len(values) == 1 else f"{values[0]:.2f} → {values[-1]:.2f}"
    return label + words


def _snapshot(run: Run) -> Snapshot:
    return RunFollower(run.directory).poll()


def _description(run: Run) -> list[str]:
    info, snapshot = run.info, _snapshot(run)
    lines = [
        title(snapshot),
        f"status   {info.status} at step {_steps(run)}"
        + (f": {clean(info.message)}" if info.message else ""),
        f"started  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(info.created_at))}"
        + (f", attempt {info.attempt}" if info.attempt > 1 else ""),
    ]
    if words := achievement(snapshot):
        lines.append(words)
    lines += [f"changed  {'  '.join(clean(item) for item in info.changed) or 'nothing'}"]
    lines += [f"look     {reason}" for reason in concerns(snapshot)]
    notes = [note for event in snapshot.events if (note := describe(event))]
    lines += [f"note     {note}" for note in notes[-5:]]
    checkpoints = RunReader(run.directory).checkpoints()
    if checkpoints:
        lines.append(
            f"weights  {clean(checkpoints[-1].sampler_path or checkpoints[-1].state_path)}"
        )
    if (best := RunReader(run.directory).best_checkpoint()) and best.step != checkpoints[-1].step:
        where = clean(best.sampler_path or best.state_path)
        lines.append(f"best     {where} ({number(best.score or 0.0)} held out at step {best.step})")
    lines += [f"files    {run.directory}", f"log      {RunReader(run.directory).layout.latest_log}"]
    if info.status is not RunStatus.FINISHED and info.status.over:
        lines.append(f"resume   {resume_command(run.directory, info)}")
    return lines + _latest_metrics(snapshot)


def _latest_metrics(snapshot: Snapshot) -> list[str]:
    """Every metric of the last step with what it means."""
    if not snapshot.steps:
        return []
    last = snapshot.steps[-1]
    lines = ["", f"metrics of step {last['step']}"]
    for name, metric in METRICS.items():
        if name in last and name != "time/at":
            lines.append(f"  {name:<32}{figure(name, last[name]):<18}{metric.meaning}")
    return lines
