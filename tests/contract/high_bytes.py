"""A world for the training loop that is learnt in a few steps by a fake model, and a run without its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import chz

from tinsmith.chat.render import make_renderer
from tinsmith.chat.turns import Action, Observation
from tinsmith.records.metrics import is_time
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.rl.checkpoints import Checkpoints
from tinsmith.rl.config import EnvConfig, OptimConfig, TrainConfig
from tinsmith.rl.kl import BasePenalty
from tinsmith.rl.loop import Loop, TrainResult
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.resume import find_start, open_trainer
from tinsmith.rl.types import StepResult


class HighByteEnv:
    """Earns 1 for a token of 128 or more, which an untrained model says half the time."""

    def __init__(self, prompt: list[int], world: str) -> None:
        self.prompt, self.world = prompt, world

    async def initial_observation(self) -> Observation:
        return Observation(self.prompt)

    async def step(self, action: Action) -> StepResult:
        right = float(action.tokens_T[0] >= 128)
        if self.world == "breaks" and not right:
            raise RuntimeError("the world broke")
        return StepResult(
            0.0 if self.world == "alike" else right, done=True, metrics={"correct": right}
        )


class HighBytes:
    """Problems that differ in their first token only."""

    def __init__(self, world: str) -> None:
        self.world = world
        self.problem_id = ""
        self.restored: object = None

    def __len__(self) -> int:
        return 200

    def problem(self, position: int) -> HighByteGroup:
        return HighByteGroup(position % 200, self.world)

    def observe(self, groups_P) -> dict[str, float]:
        return {"env/groups": float(len(groups_P))}

    def state(self) -> dict[str, str]:
        return {"world": self.world}

    def restore(self, state) -> None:
        self.restored = state


class HighByteGroup:
    def __init__(self, number: int, world: str) -> None:
        self.number, self.world = number, world
        self.problem_id = f"high/{number}"

    async def make_envs(self, group_size: int):
        prompt = [] if self.world == "empty" else [self.number, 65]
        return [HighByteEnv(prompt, self.world) for _ in range(group_size)]

    async def group_rewards(self, trajectories_G, envs_G):
        return [(0.0, {}) for _ in trajectories_G]

    async def cleanup(self) -> None:
        return None


@chz.chz
class HighByteConfig(EnvConfig):
    world: str = "normal"

    def build(self, renderer, seed, split):
        return HighBytes(self.world)


def configure(**values) -> TrainConfig:
    world = values.pop("world", "normal")
    defaults = {
        "env": HighByteConfig(max_tokens=1, world=world),
        "batch_size": 4,
        "group_size": 4,
        "num_batches": 6,
        "lora_rank": 8,
        "save_every": 2,
        "eval_size": 8,
        "optim": OptimConfig(lr=0.3),
    }
    return TrainConfig(**{**defaults, **values})


def open_writer(directory: Path, config: TrainConfig) -> RunWriter:
    status = RunStatus.RUNNING
    return RunWriter(directory, RunInfo("r", "r", status, [], {}, total_steps=config.num_batches))


async def go(client, directory: Path, config: TrainConfig, on_step=None) -> TrainResult:
    """What the process of a run does, without the process."""
    run = open_writer(directory, config)
    start = find_start(RunReader(directory))
    trainer = await open_trainer(client, config, start, "r")
    renderer = make_renderer(await asyncio.to_thread(trainer.get_tokenizer), config.model_name)
    problems, held_out = (config.env.build(renderer, 0, split) for split in ("train", "eval"))
    run.start_at(start.step if start.state_path else None)
    stop = asyncio.Event()

    class Heard:
        def __call__(self, step: int, values) -> None:
            if on_step is not None:
                on_step(step, stop)

        def rollouts(self, step: int, records) -> None:
            return None

    base = await client.create_sampling_client_async(base_model=config.base_model)
    penalty = BasePenalty(base, config.kl_coef) if config.kl_coef else None
    model = TrainedModel(trainer, config, penalty)
    checkpoints = Checkpoints(trainer, run, client._rest_client, config.keep_last)
    loop = Loop(config, problems, held_out, model, checkpoints, renderer, run, stop, Heard())
    return await loop.train(start)


def timeless(directory: Path) -> list[dict]:
    lines = RunReader(directory).metrics()
    return [{k: v for k, v in line.items() if not is_time(k)} for line in lines]


class Killed(BaseException):
    """Stands for kill -9: nothing of ours handles it."""


def kill_at(step: int):
    def kill(now: int, stop: asyncio.Event) -> None:
        if now == step:
            raise Killed

    return kill
