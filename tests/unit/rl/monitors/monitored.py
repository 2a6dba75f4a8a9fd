"""A process that monitors a run by the real wandb: python monitored.py DIRECTORY MODE [what goes wrong]."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.unit.rl.monitors.conftest import open_run, rollout
from tinsmith.errors import ConfigError
from tinsmith.rl.config import WandbConfig
from tinsmith.rl.monitors import Monitors, check_monitors
from tinsmith.rl.monitors.weights_and_biases import WeightsAndBiases


def main(directory: str, mode: str, trouble: str = "", *steps: str) -> int:
    seconds = 1.0 if trouble else 60.0
    run = open_run(Path(directory), config={"seed": 0, "optim.lr": 0.001, "wandb.tags": ["a", "b"]})
    wandb = WandbConfig(
        enabled=True, mode=mode, entity="smiths", project="anvils", run_name="ring", tags=("a", "b")
    )
    try:
        check_monitors(SimpleNamespace(wandb=wandb, tensorboard=False))
        monitors = Monitors([WeightsAndBiases(wandb, run)], run, finish_seconds=seconds)
    except ConfigError as error:
        print(f"tinsmith: {error}")
        return 2
    for step in map(int, steps):
        if trouble and step == 2:
            for child in psutil.Process().children():
                child.send_signal(signal.Signals[trouble])
        failed = rollout(step, "eval", reward=None, advantage=None, turns=[], error="broke")
        monitors.rollouts(step, [failed, rollout(step, "eval", 1), rollout(step)])
        monitors.metrics(step, {"reward": step / 4, "eval/reward": 0.5, "kl": float("nan")})
    monitors.finish("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
