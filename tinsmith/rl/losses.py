"""The losses of the update and their settings, one entry each; docs/losses.md has the formulas."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.rl.config import TrainConfig


def _clipped(config: TrainConfig) -> dict[str, float] | None:
    assert config.clips is not None
    low, high = config.clips
    return {"clip_low_threshold": low, "clip_high_threshold": high}


# loss_fn -> what is sent as loss_fn_config
LOSSES: dict[str, Callable[[TrainConfig], dict[str, float] | None]] = {
    "importance_sampling": lambda _: None,
    "ppo": _clipped,
    "cispo": _clipped,
}
