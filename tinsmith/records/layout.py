"""Names of the files and folders in a run directory; nothing else spells them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunLayout:
    """Where each record of one run lies."""

    directory: Path

    @property
    def run(self) -> Path:
        """Status, command, configuration and versions; replaced as a whole."""
        return self.directory / "run.json"

    @property
    def metrics(self) -> Path:
        """One line a step."""
        return self.directory / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """What happened beside the steps: started, saved, warned, finished."""
        return self.directory / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """One line a checkpoint, with the problem source's state."""
        return self.directory / "checkpoints.jsonl"

    @property
    def progress(self) -> Path:
        """Where the present step stands; replaced as a whole, worthless after the run."""
        return self.directory / "progress.json"

    @property
    def lock(self) -> Path:
        """Held by the process that writes the records."""
        return self.directory / "run.lock"

    @property
    def rollouts_folder(self) -> Path:
        return self.directory / "rollouts"

    def rollouts(self, step: int) -> Path:
        """The rollouts of one step, one a line, training and held-out."""
        return self.rollouts_folder / f"{step:06d}.jsonl"

    def rollout_steps(self) -> list[int]:
        """The steps that have a rollouts file, in order."""
        return sorted(int(path.stem) for path in self.rollouts_folder.glob("[0-9]*.jsonl"))

    @property
    def evals_folder(self) -> Path:
        """Evaluations that were made apart from training, a folder each."""
        return self.directory / "evals"

    def eval_result(self, name: str) -> Path:
        """What was evaluated, how, and what came of it."""
        return self.evals_folder / name / "result.json"

    def eval_rollouts(self, name: str) -> Path:
        """The rollouts of one evaluation, one a line."""
        return self.evals_folder / name / "rollouts.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Event files, one an attempt, when TensorBoard was asked for."""
        return self.directory / "tensorboard"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def attempt_log(self, attempt: int) -> Path:
        """What the process of this attempt printed."""
        return self.logs / f"attempt_{attempt}" / "train.log"

    @property
    def latest_log(self) -> Path:
        return self.logs / "latest" / "train.log"

    def start_attempt(self, attempt: int) -> Path:
        """Make the attempt's log folder, point `latest` at it and return the log's path."""
        log = self.attempt_log(attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        link = self.logs / f".latest-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(log.parent.name)
        link.replace(self.logs / "latest")
        return log
