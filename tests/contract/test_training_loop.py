"""The training loop over the real SDK and a real service: it learns, resumes exactly, stops and fails well."""

from __future__ import annotations

import json

import pytest

from tests.contract.high_bytes import Killed, configure, go, kill_at, timeless
from tinsmith.errors import ConfigError, RunError, ServiceError
from tinsmith.records.reader import RunReader
from tinsmith.records.run import read_run
from tinsmith.rl.config import OptimConfig


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


@pytest.mark.parametrize("killed_at", [1, 3, 5])
async def test_a_killed_run_goes_on_and_equals_an_uninterrupted_one(client, tmp_path, killed_at):
    await go(client, tmp_path / "whole", configure())
    with pytest.raises(Killed):
        await go(client, tmp_path / "killed", configure(), on_step=kill_at(killed_at))
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
    result = await go(client, tmp_path, configure(world="alike", num_batches=2))
    assert result.finished
    lines = list(RunReader(tmp_path).metrics(since=1))
    assert [line["groups/all_wrong"] for line in lines] == [4, 4]
    assert all(line["trained_rollouts"] == 0 and "loss" not in line for line in lines)


async def test_failed_rollouts_are_recorded_and_counted_but_not_trained_on(client, tmp_path):
    await go(client, tmp_path, configure(world="breaks", num_batches=1, eval_size=0))
    line = next(RunReader(tmp_path).metrics())
    rollouts = list(RunReader(tmp_path).rollouts(1))
    failed = [r for r in rollouts if r.error is not None]
    assert 0 < len(failed) == line["failed_rollouts"] < 16
    assert {r.error for r in failed} == {"RuntimeError: the world broke"}
    assert all(r.reward is None and r.advantage is None for r in failed)
    assert line["reward"] == 1.0


async def test_a_step_in_which_everything_fails_stops_the_run_with_the_reason(client, tmp_path):
    with pytest.raises(RunError, match=r"all 16 rollouts failed.*prompt is empty"):
        await go(client, tmp_path, configure(world="empty", eval_size=0))


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
