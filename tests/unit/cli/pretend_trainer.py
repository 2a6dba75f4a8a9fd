"""A process that writes a run like the trainer does: argv = directory, then how it behaves.

steps: four steps and the end · waits: one step, saves and stops on SIGINT · deaf: one step, ignores
SIGINT · fails: one step, then FAILED · vanishes: one step, then ends without a word · mute: writes
nothing at all and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from tests.unit.cli import synthetic
from tinsmith.records.run import RunStatus
from tinsmith.records.writer import RunWriter


def main(directory: Path, behaviour: str) -> None:
    if behaviour == "mute":
        sys.exit("I cannot begin")
    asked = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: None if behaviour == "deaf" else asked.set())
    info = synthetic.info(
        directory.name,
        pid=os.getpid(),
        pid_started_at=psutil.Process().create_time(),
        started_at=time.time(),
    )
    run = RunWriter(directory, info)
    run.event("started")
    for step in range(1, 5 if behaviour == "steps" else 2):
        run.rollouts(
            [synthetic.rollout(step, "p1", 0, "75"), synthetic.rollout(step, "p1", 1, "85")]
        )
        run.metrics(step, synthetic.metrics(step))
    match behaviour:
        case "steps":
            run.finish(RunStatus.FINISHED)
        case "fails":
            run.finish(RunStatus.FAILED, "the service has gone away.")
        case "vanishes":
            os._exit(9)
        case _:
            asked.wait()
            run.checkpoint(1, "tinker://m/weights/1", None, {})
            run.finish(RunStatus.STOPPED, "asked to stop")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
