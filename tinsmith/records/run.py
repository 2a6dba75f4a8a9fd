"""What is known of a run as a whole, kept in its run.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tinsmith.errors import RunError
from tinsmith.records import files
from tinsmith.records.files import Json
from tinsmith.records.layout import RunLayout

SCHEMA = 1


class RunStatus(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # on request; goes on when started again
    FAILED = "failed"
    LOST = "lost"  # its process vanished without a word; only readers say so

    @property
    def over(self) -> bool:
        """Whether nothing more will be written unless the run is started again."""
        return self in (self.FINISHED, self.STOPPED, self.FAILED, self.LOST)


@dataclass(frozen=True)
class RunInfo:
    """The contents of run.json. `pid` and `pid_started_at` together name one process for good."""

    id: str
    name: str
    status: RunStatus
    command: list[str]  # reproduces the run
    config: Json  # every key with its resolved value
    changed: list[str] = field(default_factory=list[str])  # the keys that were given, as key=value
    git: str | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    created_at: float = 0.0
    started_at: float = 0.0  # of the present attempt
    finished_at: float | None = None
    attempt: int = 1
    step: int = 0  # updates done
    total_steps: int = 0
    pid: int | None = None
    pid_started_at: float | None = None
    service: str = ""  # where the model is trained
    message: str = ""  # why it stopped or failed
    exit_code: int | None = None  # of the process, when the attempt is over
    schema: int = SCHEMA

    def changed_to(self, **values: Any) -> RunInfo:
        return replace(self, **values)


def read_run(directory: Path) -> RunInfo:
    """The run in `directory`; RunError when there is none or its run.json is damaged."""
    path = RunLayout(directory).run
    try:
        values: Json = json.loads(path.read_bytes())
        values["status"] = RunStatus(values["status"])
        known = {f.name for f in fields(RunInfo)}
        return RunInfo(**{key: value for key, value in values.items() if key in known})
    except FileNotFoundError as error:
        raise RunError(
            f"{directory} holds no run (there is no {path.name}). `tinsmith runs` lists yours."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is damaged ({error}). Move the directory away, or restore the file."
        ) from error


def write_run(directory: Path, info: RunInfo) -> None:
    text = json.dumps(asdict(info), indent=2, ensure_ascii=False, allow_nan=False)
    files.replace(RunLayout(directory).run, text.encode("utf-8", errors="replace") + b"\n")
