"""One evaluation that was made apart from training, as it is stored in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tinsmith.errors import RunError
from tinsmith.records import files
from tinsmith.records.files import Json
from tinsmith.records.layout import RunLayout
from tinsmith.records.rollout import RolloutRecord

SCHEMA = 1


@dataclass(frozen=True)
class EvalResult:
    """The contents of a result.json."""

    kind: str  # of what was evaluated: run, weights, model or endpoint
    name: str  # the run, the path, the model, or the endpoint's address
    step: int  # of a run: updates done before the weights were saved
    model_path: str | None  # saved weights
    model: str | None  # base model, or the endpoint's name for it
    config: Json  # every key with its resolved value
    command: list[str]  # does the same again
    metrics: dict[str, float]
    seconds: float
    created_at: float
    versions: dict[str, str] = field(default_factory=dict[str, str])
    schema: int = SCHEMA

    def to_json(self) -> Json:
        return asdict(self)


def write_evaluation(
    directory: Path, result: EvalResult, rollouts: Sequence[RolloutRecord]
) -> Path:
    """Put an evaluation into the next free folder of the directory's evaluations; returns the folder."""
    layout = RunLayout(directory)
    name = _claim(layout)
    lines = b"".join(files.to_line(record.to_json()) for record in rollouts)
    files.replace(layout.eval_rollouts(name), lines)
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    # Last: where there is a result, the rollouts are whole.
    files.replace(layout.eval_result(name), text.encode("utf-8", errors="replace") + b"\n")
    return layout.eval_result(name).parent


def read_evaluations(directory: Path) -> list[EvalResult]:
    """Every evaluation of a run, in the order they were made; RunError for a damaged one."""
    layout = RunLayout(directory)
    paths = (
        sorted(layout.evals_folder.glob("*/result.json")) if layout.evals_folder.is_dir() else []
    )
    return [_read(path) for path in paths]


def _read(path: Path) -> EvalResult:
    known = {f.name for f in fields(EvalResult)}
    try:
        values: Json = json.loads(path.read_bytes())
        return EvalResult(**{key: value for key, value in values.items() if key in known})
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged ({error}). Move its folder away.") from error


def _claim(layout: RunLayout) -> str:
    """The number of a folder nobody else has; mkdir is what makes the claim atomic."""
    number = 1
    while True:
        folder = layout.eval_result(f"{number:03d}").parent
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise files.unwritable(folder, error) from error
        else:
            return folder.name
