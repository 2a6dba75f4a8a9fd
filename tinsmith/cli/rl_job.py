"""A run of `tinsmith train`: reinforcement learning in an environment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.cli.config import flat, parse, reproducing_command, split
from tinsmith.errors import ConfigError, ModelError
from tinsmith.records.files import Json
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import TrainConfig

if TYPE_CHECKING:
    import tinker

    from tinsmith.chat.render import Renderer
    from tinsmith.cli.job import Report
    from tinsmith.rl.kl import BasePenalty
    from tinsmith.rl.loop import TrainResult


class RlJob:
    command = "train"

    def __init__(self, words: Sequence[str]) -> None:
        self.config: TrainConfig = parse(words)
        self._words = list(words)

    @property
    def total_steps(self) -> int:
        return self.config.num_batches

    def flat(self) -> Json:
        return flat(self.config)

    def changed(self) -> list[str]:
        given = split(self._words)
        return [f"{key}={value}" for key, value in given.items() if key != "log_path"]

    def reproducing_command(self) -> list[str]:
        return reproducing_command(self.config, self._words)

    def check(self) -> None:
        """Nothing beside what every run is checked for."""

    def show_plan(self) -> None:
        from tinsmith.cli.plan import show

        show(self.config)

    async def run(
        self,
        run: RunWriter,
        service: tinker.ServiceClient,
        stop: asyncio.Event,
        report: Report,
    ) -> TrainResult:
        """Bring model, problems and records together and train."""
        from tinsmith.connect import rest_client
        from tinsmith.rl.checkpoints import Checkpoints
        from tinsmith.rl.loop import Loop
        from tinsmith.rl.model import TrainedModel
        from tinsmith.rl.resume import find_start, open_trainer
        from tinsmith.rl.waiting import in_thread

        config = self.config
        start = find_start(RunReader(run.layout.directory))
        run.progress(start.step, "load model")
        first_weights = None if start.state_path else find_weights(config.first_weights)
        client = await open_trainer(service, config, start, run.info.id, first_weights)
        renderer = await in_thread(lambda: load_renderer(client, config.model_name))
        run.progress(start.step, "read data")
        problems = await in_thread(lambda: config.env.build(renderer, config.seed, "train"))
        held_out = await in_thread(lambda: config.env.build(renderer, config.seed, "eval"))
        if start.problems is not None:
            problems.restore(start.problems)
        # Only now: an attempt that cannot even begin leaves the records of the last one alone.
        run.start_at(start.step if start.state_path else None)
        run.update(status=RunStatus.RUNNING)
        run.event("started", message=f"attempt {run.info.attempt}")
        if start.state_path:
            run.event("resumed", message=f"from {start.state_path}")
        run.event(
            "ready", message=f"{len(problems):,} problems to train on, {len(held_out):,} held out"
        )
        penalty = await _penalty(service, config)
        model = TrainedModel(client, config, penalty)
        checkpoints = Checkpoints(
            client, run, lambda: rest_client(config.base_url), config.keep_last
        )
        loop = Loop(config, problems, held_out, model, checkpoints, renderer, run, stop, report)
        return await loop.train(start)


def find_weights(name: str | None) -> str | None:
    """The tinker:// path of load_checkpoint_path, which may also name a run."""
    if name is None or name.startswith("tinker://"):
        return name
    from tinsmith.runs.manager import RunManager

    run = RunManager().get(name)
    checkpoints = RunReader(run.directory).checkpoints()
    if not checkpoints:
        raise ConfigError(
            f"load_checkpoint_path: the run {run.name} has saved no checkpoint yet. Give another run, or a "
            "tinker:// path."
        )
    return checkpoints[-1].state_path


async def _penalty(service: tinker.ServiceClient, config: TrainConfig) -> BasePenalty | None:
    if config.kl_coef == 0:
        return None
    from tinsmith.rl.kl import BasePenalty

    base = await service.create_sampling_client_async(base_model=config.base_model)
    return BasePenalty(base, config.kl_coef)


def load_renderer(client: tinker.TrainingClient, model_name: str) -> Renderer:
    from tinsmith.chat.render import make_renderer

    try:
        tokenizer = client.get_tokenizer()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the tokenizer of {model_name} cannot be loaded: {error}. Check model_name, and "
            "the network when it names a model on the hub."
        ) from error
    return make_renderer(tokenizer, model_name)
