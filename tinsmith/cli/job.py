"""What a kind of run must offer so that its attempts can be started, watched and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinsmith.records.files import Json

if TYPE_CHECKING:
    import tinker

    from tinsmith.records.rollout import RolloutRecord
    from tinsmith.records.writer import RunWriter
    from tinsmith.rl.loop import TrainResult
    from tinsmith.rl.types import Metrics


class Report(Protocol):
    """Hears what is recorded and passes it on: to the log and to the monitors."""

    def __call__(self, step: int, values: Metrics, /) -> None: ...

    def rollouts(self, step: int, records: Sequence[RolloutRecord]) -> None: ...


class Job(Protocol):
    """One run of one kind, as its words ask for it. Making one refuses wrong words."""

    command: str  # `tinsmith <command>` starts it, and starts it again
    config: Any  # has model_name, base_url, log_path, seed, optim, wandb, tensorboard, dry_run

    @property
    def total_steps(self) -> int: ...

    def flat(self) -> Json:
        """Every key with its resolved value."""
        ...

    def changed(self) -> list[str]:
        """The key=value words that were given, without log_path."""
        ...

    def reproducing_command(self) -> list[str]:
        """The words that make the same run again."""
        ...

    def check(self) -> None:
        """Refuse with a sentence what cannot work, before there is a run."""
        ...

    def show_plan(self) -> None:
        """Print what would be done (dry_run)."""
        ...

    async def run(
        self,
        run: RunWriter,
        service: tinker.ServiceClient,
        stop: asyncio.Event,
        report: Report,
    ) -> TrainResult:
        """Train to the last step, or until `stop` is set."""
        ...
