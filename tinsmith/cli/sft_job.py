"""A run of `tinsmith sft`: supervised training on conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tinsmith.cli.config import flat, parse_into, reproducing_command, split
from tinsmith.cli.rl_job import find_weights, load_renderer
from tinsmith.errors import ConfigError, RunError
from tinsmith.records.files import Json
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.sft.config import SftConfig
from tinsmith.sft.conversations import FORMS, ConversationFile, read_conversations, refuse_bad

if TYPE_CHECKING:
    import tinker

    from tinsmith.chat.render import Renderer
    from tinsmith.cli.job import Report
    from tinsmith.rl.loop import TrainResult
    from tinsmith.sft.data import Examples


class SftJob:
    command = "sft"

    def __init__(self, words: Sequence[str]) -> None:
        self.config = parse_into(SftConfig, words, self.command)
        self._words = list(words)
        if self.config.data is None:
            raise ConfigError(f"sft needs data=FILE.jsonl. Each line must be {FORMS}.")
        self._path = Path(self.config.data).expanduser().resolve()

    @cached_property
    def _file(self) -> ConversationFile:
        return read_conversations(self._path)

    @property
    def total_steps(self) -> int:
        """By the lines of the file; the run corrects it when the chat template or max_length refuse some."""
        from tinsmith.sft.data import split as split_conversations
        from tinsmith.sft.data import total_steps

        train, _ = split_conversations(self._file.conversations, self.config)
        return total_steps(self.config, len(train))

    def flat(self) -> Json:
        return flat(self.config) | {"data": str(self._path)}

    def changed(self) -> list[str]:
        given = split(self._words, SftConfig, self.command)
        return [f"{key}={value}" for key, value in given.items() if key != "log_path"]

    def reproducing_command(self) -> list[str]:
        words = reproducing_command(self.config, self._words, self.command)
        return [f"data={self._path}" if word.startswith("data=") else word for word in words]

    def check(self) -> None:
        """The file is there and its lines can be used."""
        refuse_bad(self._path, self._file.bad, self.config.skip_bad)
        if not self._file.conversations:
            raise ConfigError(f"{self._path} has no line that can be trained on.")

    def show_plan(self) -> None:
        from tinsmith.sft.data import split as split_conversations

        train, held_out = split_conversations(self._file.conversations, self.config)
        rows = {
            "model": f"{self.config.base_model}, LoRA rank {self.config.lora_rank}",
            "begins with": self.config.load_checkpoint_path or "a fresh adapter",
            "data": str(self._path),
            "conversations": f"{len(train):,} to train on, {len(held_out):,} held out, "
            f"{len(self._file.bad):,} bad lines",
            "steps": f"{self.total_steps:,} of {min(self.config.batch_size, len(train)):,} conversations",
            "learning rate": f"{self.config.learning_rate:g}, {self.config.optim.schedule}",
            "checkpoints": f"every {self.config.save_every} steps and at the end"
            if self.config.save_every
            else "at the end",
            "service": self.config.base_url or "local",
        }
        width = max(map(len, rows))
        for name, value in rows.items():
            print(f"{name:<{width}}  {value}")

    async def run(
        self,
        run: RunWriter,
        service: tinker.ServiceClient,
        stop: asyncio.Event,
        report: Report,
    ) -> TrainResult:
        """Bring model, conversations and records together and train."""
        from tinsmith.connect import rest_client
        from tinsmith.rl.checkpoints import Checkpoints
        from tinsmith.rl.loop import TrainResult
        from tinsmith.rl.resume import find_start, open_trainer
        from tinsmith.rl.waiting import in_thread, unless
        from tinsmith.sft.data import Batches, total_steps
        from tinsmith.sft.loop import SftLoop
        from tinsmith.sft.model import TaughtModel

        config = self.config
        self.check()
        start = find_start(RunReader(run.layout.directory))
        state: Json = {"data_sha256": self._file.digest}
        if start.problems is not None and start.problems != state:
            raise RunError(
                f"{self._path} has changed since {run.info.name} began, so the run cannot go on exactly. Put the old "
                "file back, or choose another log_path."
            )
        run.progress(start.step, "load model")
        first_weights = None if start.state_path else find_weights(config.first_weights)
        client = await open_trainer(service, config, start, run.info.id, first_weights)
        renderer = await in_thread(lambda: load_renderer(client, config.model_name))
        rendered = await unless(stop, in_thread(lambda: self._render(renderer, run, start.step)))
        if rendered is None:
            return TrainResult(start.step, start.sampler_path, finished=False)
        train, held_out = rendered
        total = total_steps(config, len(train.examples))
        # Only now: an attempt that cannot even begin leaves the records of the last one alone.
        run.start_at(start.step if start.state_path else None)
        run.update(status=RunStatus.RUNNING, total_steps=total)
        run.event("started", message=f"attempt {run.info.attempt}")
        if start.state_path:
            run.event("resumed", message=f"from {start.state_path}")
        elif first_weights:
            run.event("loaded", message=f"the weights of {first_weights}")
        self._tell_losses(run, train, held_out)
        model = TaughtModel(client, config, total)
        loop = SftLoop(
            config,
            Batches(train.examples, config.batch_size, config.seed),
            held_out.examples,
            model,
            Checkpoints(client, run, lambda: rest_client(config.base_url), config.keep_last),
            total,
            state,
            run,
            stop,
            report,
        )
        return await loop.train(start)

    def _render(self, renderer: Renderer, run: RunWriter, step: int) -> tuple[Examples, Examples]:
        """To train on, and held out; ConfigError when too little is left or lines are refused."""
        from tinsmith.sft.data import render
        from tinsmith.sft.data import split as split_conversations

        def on_done(done: int, total: int) -> None:
            run.progress(step, "read data", done, total)

        parts = split_conversations(self._file.conversations, self.config)
        train, held_out = (render(part, renderer, self.config, on_done) for part in parts)
        bad = sorted([*train.bad, *held_out.bad], key=lambda one: one.line)
        refuse_bad(self._path, bad, self.config.skip_bad)
        if not train.examples:
            raise ConfigError(
                f"no conversation of {self._path} is left to train on: {train.too_long} are longer than "
                f"max_length={self.config.max_length}, {len(bad)} are refused by the chat template."
            )
        return train, held_out

    def _tell_losses(self, run: RunWriter, train: Examples, held_out: Examples) -> None:
        """What the run trains on, and everything of the file that it does not."""
        both = (train, held_out)
        run.event(
            "ready",
            message=f"{len(train.examples):,} conversations to train on, {len(held_out.examples):,} held out",
        )
        bad = len(self._file.bad) + sum(len(part.bad) for part in both)
        cut, too_long = sum(part.cut for part in both), sum(part.too_long for part in both)
        longer = f"conversations longer than max_length={self.config.max_length} tokens"
        for count, what in (
            (bad, "lines that cannot be used, left out"),
            (cut, f"{longer}, their end cut off"),
            (too_long, f"{longer}, left out"),
        ):
            if count:
                run.event("warned", message=f"{what}: {count:,}")
