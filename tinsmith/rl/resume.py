"""Where a run begins: at its last checkpoint when it has one, else at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.errors import ConfigError, RunError, ServiceError
from tinsmith.records.reader import RunReader
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.failures import explain
from tinsmith.rl.types import Json

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Start:
    """`step` updates are done; with a state path they are in that checkpoint."""

    step: int = 0
    state_path: str | None = None
    sampler_path: str | None = None
    problems: Json | None = None


def find_start(reader: RunReader) -> Start:
    """The last checkpoint the records know of."""
    checkpoints = reader.checkpoints()
    if not checkpoints:
        return Start()
    last = max(checkpoints, key=lambda checkpoint: checkpoint.step)
    return Start(last.step, last.state_path, last.sampler_path, last.problems)


async def open_trainer(
    service: tinker.ServiceClient, config: TrainConfig, start: Start, run_id: str
) -> tinker.TrainingClient:
    """A training client with fresh weights, or with those and the optimizer's state of a checkpoint."""
    import tinker

    metadata = {"tinsmith_run": run_id}
    try:
        if start.state_path is None:
            return await service.create_lora_training_client_async(
                base_model=config.base_model,
                rank=config.lora_rank,
                seed=config.seed,
                user_metadata=metadata,
            )
        return await service.create_training_client_from_state_with_optimizer_async(
            start.state_path, user_metadata=metadata
        )
    except (tinker.TinkerError, ValueError) as error:
        said = explain(error)
        if isinstance(error, tinker.APIConnectionError):
            raise ServiceError(f"the service cannot be reached: {said}") from error
        if start.state_path is not None:
            raise RunError(
                f"the run cannot go on from its checkpoint {start.state_path}: {said} "
                "Use the service it was saved on (base_url), or choose another log_path to start anew."
            ) from error
        raise ConfigError(said) from error
