"""Writes metrics and samples of rollouts as TensorBoard's event files; needs neither torch nor TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinsmith.errors import ConfigError
from tinsmith.records.metrics import METRICS
from tinsmith.records.rollout import Split
from tinsmith.records.writer import RunWriter
from tinsmith.rl.monitors.samples import Sample

SHOWN = 8  # samples in one text; TensorBoard shows it on one page


class EventFiles:
    """One file an attempt in <run>/tensorboard, each step flushed as it is written."""

    name = "TensorBoard"

    def __init__(self, run: RunWriter, *, clock: Callable[[], float] = time.time) -> None:
        # Not EventFileWriter, which loads TensorFlow where that is installed.
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._tensor: Any = tensor_pb2
        self._types: Any = types_pb2
        self._run, self._clock = run, clock
        self._started = False
        self._explained: set[str] = set()
        folder, info = run.layout.tensorboard, run.info
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{info.started_at:010.0f}.{info.attempt:04d}.{socket.gethostname()}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter((folder / name).open("ab"))
            self._write(self._event.Event(file_version="brain.Event:2"))
        except OSError as error:
            raise ConfigError(
                f"TensorBoard's files cannot be written into {folder}: {error.strerror or error}. "
                "Make room for them, or leave tensorboard out."
            ) from error

    def where(self) -> str:
        return f"{self.name}: tensorboard --logdir {self._run.layout.tensorboard}"

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._start(step)
        self._write(
            self._event.Event(
                step=step,
                summary=self._summary.Summary(
                    value=[self._scalar(*item) for item in values.items()]
                ),
            )
        )

    def rollouts(self, step: int, split: Split, samples: Sequence[Sample]) -> None:
        self._start(step)
        self._text(step, f"rollouts/{split}", to_markdown(samples[:SHOWN]))

    def finish(self, status: str) -> None:
        self._file.close()

    def abandon(self) -> None:
        """Nothing of it outlives the thread."""

    def _start(self, step: int) -> None:
        """With the first step of the attempt: what an earlier one wrote from there on is void."""
        if self._started:
            return
        self._started = True
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(self._event.Event(step=step, session_log=start))
        words = [f"{key}={value}" for key, value in self._run.info.config.items()]
        self._text(step, "config", _verbatim("\n".join(words)))

    def _scalar(self, name: str, value: float) -> Any:
        """A value; with the first of its name comes what it means."""
        if name in self._explained:
            return self._summary.Summary.Value(tag=name, simple_value=value)
        self._explained.add(name)
        metric = METRICS.get(name)
        unit = f" ({metric.unit})" if metric and metric.unit else ""
        metadata = self._summary.SummaryMetadata(
            summary_description=metric.meaning + unit if metric else "",
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="scalars"),
            data_class=self._summary.DATA_CLASS_SCALAR,
        )
        return self._summary.Summary.Value(tag=name, simple_value=value, metadata=metadata)

    def _text(self, step: int, name: str, markdown: str) -> None:
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        value = self._summary.Summary.Value(
            tag=name,
            metadata=self._summary.SummaryMetadata(plugin_data=plugin),
            tensor=self._tensor.TensorProto(
                dtype=self._types.DT_STRING, string_val=[markdown.encode()]
            ),
        )
        self._write(self._event.Event(step=step, summary=self._summary.Summary(value=[value])))

    def _write(self, event: Any) -> None:
        event.wall_time = self._clock()
        self._file.write(event.SerializeToString())
        self._file.flush()


def to_markdown(samples: Sequence[Sample]) -> str:
    """A heading of our own for each sample; all that a model or a dataset wrote stands verbatim."""
    parts: list[str] = []
    for number, sample in enumerate(samples, 1):
        parts += [f"#### {number}: {_earned(sample)}", _verbatim(_facts(sample))]
        parts += ["prompt", _verbatim(sample.prompt), "reply", _verbatim(sample.reply)]
    return "\n\n".join(parts)


def _earned(sample: Sample) -> str:
    reward = "failed" if sample.reward is None else f"reward {sample.reward:.4g}"
    return reward if sample.advantage is None else f"{reward}, advantage {sample.advantage:+.4g}"


def _facts(sample: Sample) -> str:
    facts = ("problem", "answer", "expected", "ended")
    return "\n".join(f"{fact:10}{' '.join(getattr(sample, fact).split())}" for fact in facts)


def _verbatim(text: str) -> str:
    """A block that markdown takes for code, whatever it holds: every line is indented."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
