"""Where a run's metrics and samples of its rollouts go beside its own records: W&B, TensorBoard."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from tinsmith.errors import ConfigError
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import WandbConfig
from tinsmith.rl.monitors.fan_out import Monitor, Monitors

__all__ = ["Monitor", "MonitorConfig", "Monitors", "check_monitors", "open_monitors"]


class MonitorConfig(Protocol):
    """What the settings of any kind of run say of monitors."""

    @property
    def wandb(self) -> WandbConfig: ...

    @property
    def tensorboard(self) -> bool: ...


def check_monitors(config: MonitorConfig) -> None:
    """Refuse what cannot work, before there is a run: a missing package, no login, no way to W&B."""
    for package, key, wanted in (
        ("wandb", "wandb.enabled=True", config.wandb.enabled),
        ("tensorboard", "tensorboard=True", config.tensorboard),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{key} needs the package {package}, which is not installed. "
                f'Type: pip install "tinsmith[{package}]"'
            )
    if config.wandb.enabled and config.wandb.mode == "online":
        from tinsmith.rl.monitors.login import check_login

        check_login()


def open_monitors(config: MonitorConfig, run: RunWriter) -> Monitors:
    """Start the monitors that are asked for; one that cannot start is a ConfigError.

    From then on none of them stops the run.
    """
    check_monitors(config)
    opened: list[Monitor] = []
    if config.tensorboard:
        from tinsmith.rl.monitors.event_files import EventFiles

        opened.append(EventFiles(run))
    if config.wandb.enabled:
        from tinsmith.rl.monitors.weights_and_biases import WeightsAndBiases

        opened.append(WeightsAndBiases(config.wandb, run))
    return Monitors(opened, run)
