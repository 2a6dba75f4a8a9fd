"""Passes what a run records on to its monitors; whatever goes wrong there is noted, and the run goes on."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Protocol

from tinsmith.errors import StorageError
from tinsmith.records.rollout import RolloutRecord, Split
from tinsmith.records.writer import RunWriter
from tinsmith.rl.monitors.samples import Sample, to_sample

SAMPLES = 32  # rollouts shown at once
SAMPLES_EVERY = 10  # steps between two showings of training rollouts
BACKLOG = 1000  # a monitor this many calls behind is taken for stuck
FINISH_SECONDS = 60.0  # for all monitors together to send what they still hold


class Monitor(Protocol):
    """One place outside the records. It may raise anything, and it may hang."""

    name: str

    def where(self) -> str:
        """How to look at it, in words that follow "monitored by"."""
        ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def rollouts(self, step: int, split: Split, samples: Sequence[Sample]) -> None: ...

    def finish(self, status: str) -> None:
        """Send what is left; nothing follows."""
        ...

    def abandon(self) -> None:
        """Called when `finish` hangs: give up whatever would keep the process from ending."""
        ...


class Monitors:
    """Every monitor of a run. No method raises, and only `finish` waits, for a bounded time."""

    def __init__(
        self,
        monitors: Sequence[Monitor],
        run: RunWriter,
        *,
        finish_seconds: float = FINISH_SECONDS,
    ) -> None:
        self._run = run
        self._lanes = [_Lane(monitor) for monitor in monitors]
        self._finish_seconds = finish_seconds
        self._announced = False
        self._shown: dict[Split, int] = {}  # the last step whose samples were passed on

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """The line of a step; numbers that are not finite are left out, as in the records."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._each(lambda monitor: monitor.metrics(step, finite))

    def rollouts(self, step: int, records: Sequence[RolloutRecord]) -> None:
        """Some of the rollouts of a step, for every evaluation and every few steps of training."""
        self._samples(step, "eval", records)
        if step <= 1 or step % SAMPLES_EVERY == 0:
            self._samples(step, "train", records)

    def finish(self, status: str) -> None:
        """Wait for what is under way. `status` is the run's: finished, stopped or failed."""
        self._each(lambda monitor: monitor.finish(status), always=True)
        for lane in self._lanes:
            lane.close()
        deadline = time.monotonic() + self._finish_seconds
        for lane in self._lanes:
            if not lane.wait(max(deadline - time.monotonic(), 0.0)):
                lane.give_up(f"it did not finish within {self._finish_seconds:g} s")
        self._note_failures()
        self._lanes = []

    def _samples(self, step: int, split: Split, records: Sequence[RolloutRecord]) -> None:
        """Once a step, however many calls bring its rollouts."""
        some = list(islice((record for record in records if record.split == split), SAMPLES))
        if not some or self._shown.get(split) == step:
            return
        self._shown[split] = step
        self._each(lambda monitor: monitor.rollouts(step, split, [to_sample(r) for r in some]))

    def _each(self, call: Callable[[Monitor], None], *, always: bool = False) -> None:
        self._announce()
        for lane in self._lanes:
            lane.put(call, always=always)
        self._note_failures()

    def _announce(self) -> None:
        """Only with the first call: a run that starts anew forgets the events before it."""
        if not self._announced:
            self._announced = True
            for lane in self._lanes:
                self._event("monitored", f"by {lane.monitor.where()}")

    def _note_failures(self) -> None:
        for lane in self._lanes:
            if lane.failure is not None and not lane.noted:
                lane.noted = True
                self._event("warned", f"{lane.monitor.name} is left out: {lane.failure}")

    def _event(self, kind: str, message: str) -> None:
        # A disk that is full stops the run where its own records are written.
        with contextlib.suppress(StorageError):
            self._run.event(kind, message=message)


class _Lane:
    """One monitor and the thread that calls it, so that a slow one holds nobody up."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.failure: str | None = None
        self.noted = False
        self._calls: SimpleQueue[tuple[Callable[[Monitor], None], bool] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name=f"monitor {monitor.name}", daemon=True
        )
        self._thread.start()

    def put(self, call: Callable[[Monitor], None], *, always: bool) -> None:
        """Have it called soon; after a failure only what must be done `always`."""
        if self.failure is None and self._calls.qsize() >= BACKLOG:
            self.failure = "it does not keep up"
        if self.failure is None or always:
            self._calls.put((call, always))

    def close(self) -> None:
        """No further calls; the thread ends after those it has."""
        self._calls.put(None)

    def wait(self, seconds: float) -> bool:
        """Whether the last call was over in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self, reason: str) -> None:
        try:
            self.monitor.abandon()
        except Exception as error:  # noqa: BLE001  a monitor never stops the run; noted once
            reason = f"{reason}, nor could it be ended: {error}"
        self._fail(reason)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, always = item
            if self.failure is not None and not always:
                continue
            try:
                call(self.monitor)
            except Exception as error:  # noqa: BLE001  a monitor never stops the run; noted once
                self._fail(str(error) or type(error).__name__)

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
