"""Saves checkpoints on the service, records them, and lets go of those no longer wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tinsmith.records.reader import CheckpointRecord, RunReader
from tinsmith.records.writer import RunWriter
from tinsmith.rl.failures import explain
from tinsmith.rl.model import SavedModel
from tinsmith.rl.types import Json

if TYPE_CHECKING:
    import tinker


class Saves(Protocol):
    """A model that can be saved under the number of a step."""

    async def save(self, step: int) -> SavedModel: ...


class Checkpoints:
    """The last `keep_last` and the best one are kept; 0 keeps every one."""

    def __init__(
        self, model: Saves, run: RunWriter, service: tinker.ServiceClient, keep_last: int
    ) -> None:
        self._model = model
        self._run = run
        self._service = service
        self._keep_last = keep_last
        self._reader = RunReader(run.layout.directory)

    def is_best(self, score: float | None) -> bool:
        """Whether weights with this held-out result are better than any saved ones and the untrained."""
        if score is None:
            return False
        before = [line["eval/reward"] for line in self._reader.metrics() if "eval/reward" in line]
        return all(score > other for other in before)

    async def save(self, step: int) -> SavedModel:
        return await self._model.save(step)

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

        rest = self._service.create_rest_client()
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
