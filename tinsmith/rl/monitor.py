"""Sends metrics to Weights & Biases: what is wrong at the start is said, what fails later is noted."""

from __future__ import annotations

import importlib.util
from typing import Any

from tinsmith.errors import ConfigError
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.types import Metrics

INSTALL = 'wandb.enabled=True needs the package wandb. Type: pip install "tinsmith[wandb]"'


def check_wandb(config: TrainConfig) -> None:
    """Refuse before anything is started when the package is missing."""
    if config.wandb.enabled and importlib.util.find_spec("wandb") is None:
        raise ConfigError(INSTALL)


class Monitor:
    """Does nothing unless wandb is enabled; once it has started it never stops the run."""

    def __init__(self, config: TrainConfig, run: RunWriter) -> None:
        self._run = run
        self._wandb: Any = None  # wandb ships no types
        check_wandb(config)
        if config.wandb.enabled:
            self._wandb = _start(config, run)

    def log(self, step: int, values: Metrics) -> None:
        if self._wandb is None:
            return
        try:
            self._wandb.log(values, step=step)
        except Exception as error:  # noqa: BLE001  a monitor never stops the run; noted once
            self._give_up(error)

    def finish(self) -> None:
        if self._wandb is None:
            return
        try:
            self._wandb.finish()
        except Exception as error:  # noqa: BLE001  a monitor never stops the run; noted once
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._wandb = None
        self._run.event("warned", message=f"Weights & Biases failed and is left out: {error}")


def _start(config: TrainConfig, run: RunWriter) -> Any:
    import wandb  # type: ignore[import-not-found]  # an extra

    try:
        return wandb.init(
            entity=config.wandb.entity,
            project=config.wandb.project,
            name=config.wandb.run_name or run.info.name,
            id=run.info.id,
            resume="allow",
            config=run.info.config,
            dir=str(run.layout.directory),
        )
    except Exception as error:
        raise ConfigError(
            f"Weights & Biases could not be started: {error}. Log in with `wandb login`, "
            "or leave wandb.enabled out."
        ) from error
