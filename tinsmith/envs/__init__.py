"""Environments. Importing this finds every one of them by name and loads nothing heavy."""

from __future__ import annotations

from tinsmith.envs.math import MathConfig
from tinsmith.rl.config import EnvConfig

DEFAULT: type[EnvConfig] = MathConfig
ENVIRONMENTS: dict[str, type[EnvConfig]] = {config.__name__: config for config in (MathConfig,)}
