"""Weights & Biases: what is wrong at the start is a sentence, what fails later never stops the run."""

from __future__ import annotations

import sys
import types

import pytest

from tinsmith.envs import MathConfig
from tinsmith.errors import ConfigError
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.rl import monitor
from tinsmith.rl.config import TrainConfig, WandbConfig
from tinsmith.rl.monitor import Monitor

ENABLED = TrainConfig(env=MathConfig(), wandb=WandbConfig(enabled=True, project="p"))


class Session:
    def __init__(self, log: list) -> None:
        self.log_lines, self.broken = log, False

    def log(self, values, step) -> None:
        if self.broken:
            raise ConnectionError("the network is down")
        self.log_lines.append((step, values))

    def finish(self) -> None:
        self.log_lines.append("finish")


@pytest.fixture
def run(tmp_path):
    return RunWriter(
        tmp_path, RunInfo("calm-anvil", "calm-anvil", RunStatus.RUNNING, [], {"seed": 0})
    )


@pytest.fixture
def wandb(monkeypatch):
    """A package of that name, as it is not installed for the tests."""
    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace(name="wandb")  # type: ignore[assignment]
    module.lines = []
    module.session = Session(module.lines)

    def init(**settings):
        module.settings = settings
        return module.session

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_nothing_happens_unless_enabled(run, wandb):
    quiet = Monitor(TrainConfig(env=MathConfig()), run)
    quiet.log(1, {"reward": 1.0})
    quiet.finish()
    assert wandb.lines == []


def test_metrics_go_out_under_the_runs_own_id(run, wandb):
    sending = Monitor(ENABLED, run)
    sending.log(1, {"reward": 1.0})
    sending.finish()
    assert wandb.lines == [(1, {"reward": 1.0}), "finish"]
    assert (wandb.settings["id"], wandb.settings["resume"]) == ("calm-anvil", "allow")
    assert wandb.settings["project"] == "p"


def test_a_failure_later_is_noted_once_and_ends_the_sending(run, wandb):
    sending = Monitor(ENABLED, run)
    wandb.session.broken = True
    sending.log(1, {"reward": 1.0})
    sending.log(2, {"reward": 1.0})
    sending.finish()
    notes = [event["message"] for event in RunReader(run.layout.directory).events()]
    assert notes == ["Weights & Biases failed and is left out: the network is down"]


def test_a_failure_at_the_start_is_a_sentence(run, wandb):
    def refuse(**settings):
        raise PermissionError("no key")

    wandb.init = refuse
    with pytest.raises(ConfigError, match="could not be started: no key"):
        Monitor(ENABLED, run)


def test_a_missing_package_is_a_sentence(run, monkeypatch):
    monkeypatch.setattr(monitor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "tinsmith\[wandb\]"'):
        Monitor(ENABLED, run)
