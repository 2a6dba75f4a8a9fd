"""Sends metrics and samples of rollouts to Weights & Biases, or into files for `wandb sync`."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from tinsmith.errors import ConfigError
from tinsmith.records.rollout import Split
from tinsmith.records.run import RunInfo
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import WandbConfig
from tinsmith.rl.monitors.samples import Sample

INIT_SECONDS = 60.0  # for the server to take the run
FORGET_SECONDS = 5.0
COLUMNS = [field.name for field in fields(Sample)]


class WeightsAndBiases:
    """One W&B run for all attempts of a run, found again by its id."""

    name = "Weights & Biases"

    def __init__(self, config: WandbConfig, run: RunWriter) -> None:
        import wandb

        self._wandb: Any = wandb  # its types change from release to release
        try:
            # WANDB_MODE may ask for less than the configuration does.
            set_mode = self._wandb.setup().settings.mode
            self._mode = config.mode if set_mode == "online" else set_mode
            self._session: Any = self._wandb.init(
                entity=config.entity,
                project=config.project,
                name=config.run_name or run.info.name,
                tags=list(config.tags),
                id=run_id(run.info),
                resume="allow" if self._mode == "online" else None,
                mode=self._mode,
                config=run.info.config,
                allow_val_change=True,  # num_batches may grow from one attempt to the next
                dir=str(run.layout.directory),
                settings=self._wandb.Settings(
                    init_timeout=INIT_SECONDS, console="off", silent=True
                ),
            )
            # wandb's own step only grows, but a resumed run does some steps again.
            self._session.define_metric("step", hidden=True)
            self._session.define_metric("*", step_metric="step")
        except Exception as error:  # noqa: BLE001  whatever wandb raises, it is said in a sentence
            self.abandon()
            raise ConfigError(
                f"Weights & Biases did not take the run: {without_keys(str(error)).rstrip('. ')}. "
                "Check wandb.entity and wandb.project, or write files only: wandb.mode=offline"
            ) from None

    def where(self) -> str:
        if self._mode == "online":
            return f"{self.name} at {self._session.url}"
        return f"{self.name} ({self._mode}): wandb sync {self._session.settings.sync_dir}"

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._session.log({"step": step, **values})

    def rollouts(self, step: int, split: Split, samples: Sequence[Sample]) -> None:
        rows = [list(astuple(sample)) for sample in samples]
        table = self._wandb.Table(columns=COLUMNS, data=rows, allow_mixed_types=True)
        self._session.log({"step": step, f"rollouts/{split}": table})

    def finish(self, status: str) -> None:
        self._session.summary["status"] = status
        self._session.finish(exit_code=0 if status == "finished" else 1)

    def abandon(self) -> None:
        """End wandb's helper, for which wandb would wait without end when this process ends.

        What it has not sent lies in the run directory, where `wandb sync` finds it.
        """
        import psutil

        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.name() == "wandb-core":
                    child.kill()
        forgetting = threading.Thread(target=self._forget, name="forget wandb", daemon=True)
        forgetting.start()
        forgetting.join(FORGET_SECONDS)

    def _forget(self) -> None:
        """Have wandb let go of the helper now, or it prints a traceback when the process ends."""
        # It complains of the lost helper and may ask to exit; why it is gone is noted already.
        with contextlib.suppress(Exception, SystemExit):
            self._wandb.teardown()


def run_id(info: RunInfo) -> str:
    """The same for every attempt, and another for a run that only has the same name elsewhere."""
    letters = re.sub(r"[^0-9A-Za-z_-]", "-", info.id)[:64]
    return f"{letters}-{hashlib.sha256(f'{info.id} {info.created_at!r}'.encode()).hexdigest()[:8]}"


def without_keys(text: str) -> str:
    """The text on one line, with whatever looks like an API key taken out."""
    return re.sub(r"wandb_v1_\w+|[0-9a-fA-F]{40,}", "(key)", " ".join(text.split()))
