"""Whatever a monitor does, the run goes on, and its events say once what happened."""

from __future__ import annotations

import threading

import pytest

from tests.unit.rl.monitors.conftest import rollout
from tinsmith.errors import StorageError
from tinsmith.rl.monitors.fan_out import BACKLOG, SAMPLES, Monitors


class Listener:
    """Keeps what it hears."""

    def __init__(self, name: str = "Listener") -> None:
        self.name, self.heard, self.finished = name, [], threading.Event()

    def where(self) -> str:
        return f"{self.name} in memory"

    def metrics(self, step, values) -> None:
        self.heard.append((step, dict(values)))

    def rollouts(self, step, split, samples) -> None:
        self.heard.append((step, split, list(samples)))

    def finish(self, status) -> None:
        self.heard.append(status)
        self.finished.set()

    def abandon(self) -> None:
        self.heard.append("abandoned")


class Broken(Listener):
    def metrics(self, step, values) -> None:
        raise ConnectionError("the network is down")

    def rollouts(self, step, split, samples) -> None:
        raise ValueError("no tables today")


class Stuck(Listener):
    """Hangs in the method of that name until it is abandoned."""

    def __init__(self, method: str) -> None:
        super().__init__("Stuck")
        self.freed = threading.Event()
        setattr(self, method, lambda *words: self.freed.wait(60))

    def abandon(self) -> None:
        super().abandon()
        self.freed.set()


def shown(listener: Listener, split: str) -> list[int]:
    return [heard[0] for heard in listener.heard if len(heard) == 3 and heard[1] == split]


def test_everything_arrives_in_order(run, notes):
    one, two = Listener("One"), Listener("Two")
    monitors = Monitors([one, two], run)
    values = {"reward": 0.5, "kl": float("nan"), "loss": float("inf")}
    monitors.metrics(1, values)
    values["reward"] = 9.0  # the caller goes on using its dictionary
    monitors.metrics(2, {"reward": 1})
    monitors.finish("finished")
    assert one.heard == two.heard == [(1, {"reward": 0.5}), (2, {"reward": 1.0}), "finished"]
    assert notes("warned") == []
    assert notes("monitored") == ["by One in memory", "by Two in memory"]


def test_a_broken_monitor_is_noted_once_and_the_others_go_on(run, notes):
    broken, sound = Broken("Broken"), Listener()
    monitors = Monitors([broken, sound], run)
    for step in range(1, 6):
        monitors.rollouts(step, [rollout(step)])
        monitors.metrics(step, {"reward": 1.0})
    monitors.finish("failed")
    assert notes("warned") == ["Broken is left out: no tables today"]
    assert broken.heard == ["failed"]  # what it has so far is still put away
    assert [heard[0] for heard in sound.heard if heard != "failed"] == [1, 1, 2, 3, 4, 5]


def test_two_broken_monitors_are_two_notes(run, notes):
    monitors = Monitors([Broken("Left"), Broken("Right")], run)
    monitors.metrics(1, {"reward": 1.0})
    monitors.finish("finished")
    assert sorted(notes("warned")) == [
        "Left is left out: the network is down",
        "Right is left out: the network is down",
    ]


@pytest.mark.parametrize("method", ["metrics", "finish"])
def test_a_hanging_monitor_is_given_up(run, notes, method):
    stuck, sound = Stuck(method), Listener()
    monitors = Monitors([stuck, sound], run, finish_seconds=0.05)
    monitors.metrics(1, {"reward": 1.0})
    monitors.finish("finished")
    assert "abandoned" in stuck.heard
    assert "Stuck is left out: it did not finish within 0.05 s" in notes("warned")
    assert sound.finished.wait(30)
    assert sound.heard[:2] == [(1, {"reward": 1.0}), "finished"]


def test_a_monitor_that_falls_far_behind_holds_no_memory(run, notes):
    stuck = Stuck("metrics")
    monitors = Monitors([stuck], run, finish_seconds=0.05)
    for step in range(BACKLOG + 10):
        monitors.metrics(step, {"reward": 1.0})
    monitors.finish("stopped")
    assert notes("warned") == ["Stuck is left out: it does not keep up"]


def test_what_goes_wrong_while_giving_up_stays_inside(run, notes):
    class Stubborn(Stuck):
        def abandon(self) -> None:
            super().abandon()
            raise PermissionError("cannot be killed")

    monitors = Monitors([Stubborn("finish")], run, finish_seconds=0.05)
    monitors.finish("finished")
    (note,) = notes("warned")
    assert note.endswith("finish within 0.05 s, nor could it be ended: cannot be killed")


def test_a_full_disk_does_not_reach_the_caller(run, monkeypatch):
    def full(*words, **fields):
        raise StorageError("no space left")

    monkeypatch.setattr(run, "event", full)
    monitors = Monitors([Broken()], run)
    monitors.metrics(1, {"reward": 1.0})
    monitors.finish("finished")


def test_evaluations_are_always_shown_and_training_every_few_steps(run):
    listener = Listener()
    monitors = Monitors([listener], run)
    for step in range(22):
        monitors.rollouts(step, [rollout(step), rollout(step, "eval")])
    monitors.finish("finished")
    assert shown(listener, "eval") == list(range(22))
    assert shown(listener, "train") == [0, 1, 10, 20]


def test_few_rollouts_are_shown_and_only_once_a_step(run):
    listener = Listener()
    monitors = Monitors([listener], run)
    monitors.rollouts(10, [rollout(10, member=member) for member in range(SAMPLES + 5)])
    monitors.rollouts(10, [rollout(10, member=99)])
    monitors.rollouts(10, [])
    monitors.finish("finished")
    assert shown(listener, "train") == [10]
    assert [sample.member for sample in listener.heard[0][2]] == list(range(SAMPLES))


def test_records_that_cannot_be_shown_stop_nothing(run, notes):
    monitors = Monitors([Listener()], run)
    monitors.rollouts(1, [rollout(turns=[{"text": "a", "logs": None}])])
    monitors.finish("finished")
    assert len(notes("warned")) == 1


def test_without_monitors_nothing_happens(run, notes):
    monitors = Monitors([], run)
    monitors.metrics(1, {"reward": 1.0})
    monitors.rollouts(1, [rollout()])
    monitors.finish("finished")
    assert not run.layout.events.exists()
