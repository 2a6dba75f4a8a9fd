"""Where a run begins: at its last checkpoint when it has one, else at the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tinsmith.errors import ConfigError, RunError, ServiceError
from tinsmith.records.reader import RunReader
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
    loop: Json = field(default_factory=dict[str, Any])  # where the sampling stood


class ModelChoice(Protocol):
    """What a configuration says of the model to train."""

    @property
    def base_model(self) -> str: ...
    @property
    def lora_rank(self) -> int: ...
    @property
    def seed(self) -> int: ...


def find_start(reader: RunReader) -> Start:
    """The last checkpoint the records know of."""
    checkpoints = reader.checkpoints()
    if not checkpoints:
        return Start()
    last = max(checkpoints, key=lambda checkpoint: checkpoint.step)
    return Start(last.step, last.state_path, last.sampler_path, last.problems, last.loop)


async def open_trainer(
    service: tinker.ServiceClient,
    config: ModelChoice,
    start: Start,
    run_id: str,
    first_weights: str | None = None,
) -> tinker.TrainingClient:
    """A training client with a checkpoint's weights and optimizer; at the run's start with fresh ones, or
    with the weights at the tinker:// path `first_weights`."""
    import tinker

    metadata = {"tinsmith_run": run_id}
    try:
        if start.state_path is None and first_weights is not None:
            client = await service.create_training_client_from_state_async(
                first_weights, user_metadata=metadata
            )
            await _refuse_other_model(client, config, first_weights)
            return client
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
        if start.state_path is None and first_weights is not None:
            raise ConfigError(
                f"training cannot start from load_checkpoint_path {first_weights}: {said} "
                "Give a tinker://.../weights/... path that this service has, or a run that has saved one."
            ) from error
        if start.state_path is not None:
            raise RunError(
                f"the run cannot go on from its checkpoint {start.state_path}: {said} "
                "Use the service it was saved on (base_url), or choose another log_path to start anew."
            ) from error
        raise ConfigError(said) from error


async def _refuse_other_model(
    client: tinker.TrainingClient, config: ModelChoice, first_weights: str
) -> None:
    """Saved weights bring their own model and rank: they must be the ones the settings speak of."""
    info = await client.get_info_async()
    for key, wanted, found in (
        ("model_name", config.base_model, info.model_data.model_name),
        ("lora_rank", config.lora_rank, info.lora_rank),
    ):
        if found is not None and found != wanted:
            raise ConfigError(
                f"load_checkpoint_path {first_weights} has {key}={found}, and the settings say {wanted}. Give "
                f"{key}={found}."
            )
