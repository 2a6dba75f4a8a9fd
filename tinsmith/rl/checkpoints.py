"""Saves checkpoints on the service, records them, and lets go of those no longer wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.records.reader import CheckpointRecord, RunReader
from tinsmith.records.writer import RunWriter
from tinsmith.rl.failures import explain, sdk_failures
from tinsmith.rl.types import Json

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class SavedModel:
    state_path: str  # weights and optimizer: training goes on from here
    sampler_path: str  # weights alone: for sampling


class Checkpoints:
    """The last `keep_last` and the best one are kept; 0 keeps every one."""

    def __init__(
        self,
        client: tinker.TrainingClient,
        run: RunWriter,
        open_rest: Callable[[], tinker.RestClient],
        keep_last: int,
    ) -> None:
        self._client = client
        self._run = run
        self._open_rest = open_rest
        self._keep_last = keep_last
        self._reader = RunReader(run.layout.directory)

    async def save(self, step: int) -> SavedModel:
        """Save weights and optimizer, and the weights alone, under the step's number."""
        name = f"{step:06d}"
        with sdk_failures(f"the checkpoint of step {step} was not saved"):
            saving = await self._client.save_state_async(name)
            exporting = await self._client.save_weights_for_sampler_async(name)
            saved, exported = await asyncio.gather(saving.result_async(), exporting.result_async())
        return SavedModel(saved.path, exported.path)

    async def record(
        self, step: int, saved: SavedModel, problems: Json, *, loop: Json, score: float | None
    ) -> None:
        """From here on the run resumes at `step`; older checkpoints may go."""
        self._run.checkpoint(
            step, saved.state_path, saved.sampler_path, problems, loop=loop, score=score
        )
        for old in self._unwanted():
            await self._delete(old)

    def _unwanted(self) -> list[CheckpointRecord]:
        if self._keep_last == 0:
            return []
        best = self._reader.best_checkpoint()
        older = self._reader.checkpoints()[: -self._keep_last]
        return [checkpoint for checkpoint in older if best is None or checkpoint.step != best.step]

    async def _delete(self, checkpoint: CheckpointRecord) -> None:
        """Delete both halves; one that cannot be deleted stays where it is, and is noted."""
        import tinker

        rest = self._open_rest()
        for path in (checkpoint.state_path, checkpoint.sampler_path):
            try:
                if path is not None:
                    await rest.delete_checkpoint_from_tinker_path_async(path)
            except tinker.NotFoundError:
                continue
            except (tinker.TinkerError, ValueError) as error:
                message = f"the checkpoint {path} could not be deleted: {explain(error)}"
                self._run.event("warned", message=message)
                return
        self._run.checkpoint_deleted(checkpoint.step)
