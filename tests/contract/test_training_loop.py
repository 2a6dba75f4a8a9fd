"""The training loop over the real SDK and a real service: it learns, resumes exactly, stops and fails well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import chz
import pytest

from tinsmith.chat.render import make_renderer
from tinsmith.chat.turns import Action, Observation
from tinsmith.errors import ConfigError, RunError, ServiceError
from tinsmith.records.metrics import is_time
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus, read_run
from tinsmith.records.writer import RunWriter
from tinsmith.rl.config import EnvConfig, OptimConfig, TrainConfig
from tinsmith.rl.loop import Loop, TrainResult
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.resume import find_start, open_trainer
from tinsmith.rl.types import StepResult


class HighByteEnv:
    """Earns 1 for a token of 128 or more, which an untrained model says half the time."""

    def __init__(self, prompt: list[int], mode: str) -> None:
        self.prompt, self.mode = prompt, mode

    async def initial_observation(self) -> Observation:
        return Observation(self.prompt)

    async def step(self, action: Action) -> StepResult:
        right = float(action.tokens_T[0] >= 128)
        if self.mode == "breaks" and not right:
            raise RuntimeError("the world broke")
        return StepResult(
            0.0 if self.mode == "alike" else right, done=True, metrics={"correct": right}
        )


class HighBytes:
    """Problems that differ in their first token only."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.problem_id = ""
        self.restored: object = None

    def __len__(self) -> int:
        return 200

    def batch(self, step: int, size: int) -> Sequence[HighByteGroup]:
        return [HighByteGroup((step * size + i) % 200, self.mode) for i in range(size)]

    def observe(self, groups_P) -> dict[str, float]:
        return {"env/groups": float(len(groups_P))}

    def state(self) -> dict[str, str]:
        return {"mode": self.mode}

    def restore(self, state) -> None:
        self.restored = state


class HighByteGroup:
    def __init__(self, number: int, mode: str) -> None:
        self.number, self.mode = number, mode
        self.problem_id = f"high/{number}"

    async def make_envs(self, group_size: int):
        prompt = [] if self.mode == "empty" else [self.number, 65]
        return [HighByteEnv(prompt, self.mode) for _ in range(group_size)]

    async def group_rewards(self, trajectories_G, envs_G):
        return [(0.0, {}) for _ in trajectories_G]

    async def cleanup(self) -> None:
        return None


@chz.chz
class HighByteConfig(EnvConfig):
    mode: str = "normal"

    def build(self, renderer, seed, split):
        return HighBytes(self.mode)


def configure(**values) -> TrainConfig:
    mode = values.pop("mode", "normal")
    defaults = {
        "env": HighByteConfig(max_tokens=1, mode=mode),
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

    def report(step: int, values) -> None:
        if on_step is not None:
            on_step(step, stop)

    model = TrainedModel(trainer, config)
    loop = Loop(config, problems, held_out, model, renderer, run, stop, report)
    return await loop.train(start)


def timeless(directory: Path) -> list[dict]:
    lines = RunReader(directory).metrics()
    return [{k: v for k, v in line.items() if not is_time(k)} for line in lines]


async def test_it_learns_and_records_every_step(client, tmp_path):
    config = configure(batch_size=32, group_size=8, eval_size=100, optim=OptimConfig(lr=0.5))
    result = await go(client, tmp_path, config)
    assert (result.steps, result.finished) == (6, True)
    lines = list(RunReader(tmp_path).metrics())
    assert [line["step"] for line in lines] == list(range(7))
    assert lines[0]["eval/reward"] < 0.7
    assert lines[-1]["eval/reward"] > 0.9
    assert lines[-1]["reward"] > lines[1]["reward"]
    for line in lines[1:]:
        kinds = sum(line[f"groups/{kind}"] for kind in ("mixed", "all_right", "all_wrong"))
        assert kinds == line["env/groups"] == 32
        assert line["rollouts"] == 256
        assert line["trained_rollouts"] == 8 * line["groups/mixed"]
        if line["groups/mixed"]:
            assert 0 <= line["kl"] < 1e-6
    assert [c.step for c in RunReader(tmp_path).checkpoints()] == [2, 4, 6]
    assert result.sampler_path == RunReader(tmp_path).checkpoints()[-1].sampler_path


async def test_the_recorded_rollouts_are_the_ones_the_metrics_speak_of(client, tmp_path):
    await go(client, tmp_path, configure(num_batches=1))
    reader = RunReader(tmp_path)
    rollouts = list(reader.rollouts(1, split="train"))
    line = next(reader.metrics(since=1))
    assert line["reward"] == sum(r.reward for r in rollouts) / len(rollouts)
    assert sum(r.advantage is not None for r in rollouts) == line["trained_rollouts"]
    assert len(list(reader.rollouts(0, split="eval"))) == 8
    assert len(list(reader.rollouts(1, split="eval"))) == 8
    said = rollouts[0].turns[-1]
    assert len(said["tokens"]) == len(said["logprobs"]) == 1


class Killed(BaseException):
    """Stands for kill -9: nothing of ours handles it."""


@pytest.mark.parametrize("killed_at", [1, 3, 5])
async def test_a_killed_run_goes_on_and_equals_an_uninterrupted_one(client, tmp_path, killed_at):
    await go(client, tmp_path / "whole", configure())

    def kill(step, stop):
        if step == killed_at:
            raise Killed

    with pytest.raises(Killed):
        await go(client, tmp_path / "killed", configure(), on_step=kill)
    result = await go(client, tmp_path / "killed", configure())
    assert result.finished
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")
    for step in range(7):
        whole, killed = (list(RunReader(tmp_path / d).rollouts(step)) for d in ("whole", "killed"))
        assert [r.turns for r in killed] == [r.turns for r in whole]


async def test_asked_to_stop_it_saves_and_goes_on_later(client, tmp_path):
    await go(client, tmp_path / "whole", configure())
    result = await go(
        client, tmp_path / "r", configure(), lambda step, stop: step == 3 and stop.set()
    )
    assert (result.steps, result.finished) == (3, False)
    assert RunReader(tmp_path / "r").checkpoints()[-1].step == 3
    assert (await go(client, tmp_path / "r", configure())).finished
    assert timeless(tmp_path / "r") == timeless(tmp_path / "whole")


async def test_steps_without_any_signal_are_counted_and_recorded(client, tmp_path):
    result = await go(client, tmp_path, configure(mode="alike", num_batches=2))
    assert result.finished
    lines = list(RunReader(tmp_path).metrics(since=1))
    assert [line["groups/all_wrong"] for line in lines] == [4, 4]
    assert all(line["trained_rollouts"] == 0 and "loss" not in line for line in lines)


async def test_failed_rollouts_are_recorded_and_counted_but_not_trained_on(client, tmp_path):
    await go(client, tmp_path, configure(mode="breaks", num_batches=1, eval_size=0))
    line = next(RunReader(tmp_path).metrics())
    rollouts = list(RunReader(tmp_path).rollouts(1))
    failed = [r for r in rollouts if r.error is not None]
    assert 0 < len(failed) == line["failed_rollouts"] < 16
    assert {r.error for r in failed} == {"RuntimeError: the world broke"}
    assert all(r.reward is None and r.advantage is None for r in failed)
    assert line["reward"] == 1.0


async def test_a_step_in_which_everything_fails_stops_the_run_with_the_reason(client, tmp_path):
    with pytest.raises(RunError, match=r"all 16 rollouts failed.*prompt is empty"):
        await go(client, tmp_path, configure(mode="empty", eval_size=0))


async def test_a_failed_optimizer_step_stops_the_run(client, server, tmp_path, monkeypatch):
    def refuse(model, adam):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(server.backend, "optim_step", refuse)
    with pytest.raises(ServiceError, match="the update failed"):
        await go(client, tmp_path, configure(eval_size=0))
    assert list(RunReader(tmp_path).metrics()) == []


async def test_an_unknown_model_is_a_sentence(client, tmp_path):
    with pytest.raises(ConfigError) as caught:
        await go(client, tmp_path, configure(model_name="nobody/nothing"))
    assert "nobody/nothing" in str(caught.value)


async def test_a_lost_checkpoint_is_a_sentence(client, tmp_path):
    path = "tinker://nobody:train:0/weights/000002"
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps({"step": 2, "state_path": path}) + "\n")
    with pytest.raises(RunError, match="cannot go on from its checkpoint"):
        await go(client, tmp_path, configure())
    assert RunReader(tmp_path).checkpoints()


async def test_the_seed_decides_everything(client, tmp_path):
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        await go(client, tmp_path / name, configure(seed=seed, num_batches=2))
    assert timeless(tmp_path / "one") == timeless(tmp_path / "same")
    assert timeless(tmp_path / "one") != timeless(tmp_path / "other")


async def test_run_json_follows_the_steps(client, tmp_path):
    await go(client, tmp_path, configure(num_batches=2))
    assert read_run(tmp_path).step == 2
