"""Modes, substeps, penalties and checkpoints of the training loop, over the real SDK and a real service."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.contract.high_bytes import Killed, configure, go, kill_at, timeless
from tinsmith.records.reader import RunReader
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter
from tinsmith.rl.checkpoints import Checkpoints, SavedModel
from tinsmith.rl.config import OptimConfig, RolloutConfig


def lines(directory):
    return list(RunReader(directory).metrics(since=1))


def trained_problems(directory):
    """Which problems each step was computed from."""
    reader = RunReader(directory)
    steps = [line["step"] for line in reader.metrics(since=1)]
    return {
        step: sorted({r.problem_id for r in reader.rollouts(step, split="train")}) for step in steps
    }


async def test_streaming_gives_the_numbers_of_the_synchronous_mode(client, tmp_path):
    words = {"num_minibatches": 2, "num_substeps": 2}
    await go(client, tmp_path / "sync", configure(**words))
    await go(client, tmp_path / "stream", configure(mode="stream", **words))
    assert timeless(tmp_path / "stream") == timeless(tmp_path / "sync")
    assert {line["updates"] for line in lines(tmp_path / "sync")} <= {0, 1, 2}


async def test_minibatches_add_up_to_the_whole_batch(client, tmp_path):
    await go(client, tmp_path / "one", configure(num_batches=2))
    await go(client, tmp_path / "four", configure(num_batches=2, num_minibatches=4))
    for one, four in zip(lines(tmp_path / "one"), lines(tmp_path / "four"), strict=True):
        assert four["reward"] == one["reward"]
        assert four["loss"] == pytest.approx(one["loss"], rel=1e-5, abs=1e-7)
        assert four["updates"] == one["updates"] == 1


async def test_the_first_substep_is_on_policy_and_later_ones_are_weighted(client, tmp_path):
    await go(client, tmp_path, configure(num_batches=1, num_substeps=2, batch_size=8))
    (line,) = lines(tmp_path)
    assert line["updates"] == 2
    assert line["kl"] > 1e-6  # half of the batch was trained on after an update


@pytest.mark.parametrize("mode", ["sync", "stream"])
async def test_on_policy_weights_are_one(client, tmp_path, mode):
    await go(client, tmp_path, configure(mode=mode, num_batches=3))
    for line in lines(tmp_path):
        if line["trained_tokens"]:
            assert line["ratio"] == pytest.approx(1.0, abs=1e-5)
            assert line["staleness_max"] == 0


@pytest.mark.parametrize("killed_at", [1, 3, 5])
async def test_a_killed_streaming_run_equals_an_uninterrupted_one(client, tmp_path, killed_at):
    config = configure(mode="stream", num_minibatches=2)
    await go(client, tmp_path / "whole", config)
    with pytest.raises(Killed):
        await go(client, tmp_path / "killed", config, kill_at(killed_at))
    assert (await go(client, tmp_path / "killed", config)).finished
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")


async def test_async_learns_within_its_bound_and_every_token_says_its_weights(client, tmp_path):
    config = configure(
        mode="async",
        max_steps_off_policy=2,
        batch_size=16,
        group_size=8,
        num_batches=12,
        optim=OptimConfig(lr=0.5),
        eval_size=100,
    )
    await go(client, tmp_path, config)
    found = lines(tmp_path)
    assert found[-1]["eval/reward"] > 0.9
    assert max(line.get("staleness_max", 0) for line in found) in (1, 2)
    reader = RunReader(tmp_path)
    for step in range(1, 13):
        for record in reader.rollouts(step, split="train"):
            assert step - 1 - 2 <= record.policy_version <= step - 1
            assert record.turns[-1]["version"] == record.policy_version
    # Every problem that was begun is trained on once, in some step.
    seen = Counter(p for ids in trained_problems(tmp_path).values() for p in ids)
    assert sum(seen.values()) == 12 * 16
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("killed_at", [3, 4, 5])
async def test_a_killed_async_run_neither_skips_nor_repeats_a_problem(client, tmp_path, killed_at):
    config = configure(mode="async", num_batches=8)
    with pytest.raises(Killed):
        await go(client, tmp_path, config, kill_at(killed_at))
    result = await go(client, tmp_path, config)
    assert (result.steps, result.finished) == (8, True)
    ids = Counter(p for found in trained_problems(tmp_path).values() for p in found)
    assert ids == Counter(f"high/{i}" for i in range(32))
    assert all(line.get("staleness_max", 0) <= 2 for line in lines(tmp_path))


async def test_asked_to_stop_an_async_run_loses_no_problem(client, tmp_path):
    config = configure(mode="async", num_batches=8)
    stopped = await go(client, tmp_path, config, lambda step, stop: step == 3 and stop.set())
    assert (stopped.steps, stopped.finished) == (3, False)
    await go(client, tmp_path, config)
    ids = Counter(p for found in trained_problems(tmp_path).values() for p in found)
    assert ids == Counter(f"high/{i}" for i in range(32))


@pytest.mark.parametrize("mode", ["sync", "stream", "async"])
async def test_groups_without_signal_are_replaced_and_counted(client, tmp_path, mode):
    config = configure(mode=mode, no_signal="resample", group_size=2, batch_size=6, num_batches=3)
    await go(client, tmp_path, config)
    found = lines(tmp_path)
    assert sum(line["groups/resampled"] for line in found) > 0
    for line in found:
        assert line["groups/mixed"] == 6 or line["groups/resampled"] == 12
        assert line["rollouts"] == 2 * (6 + line["groups/resampled"])


async def test_resampling_ends_when_there_is_no_signal_to_be_had(client, tmp_path):
    config = configure(world="alike", no_signal="resample", max_resample=1.5, num_batches=2)
    await go(client, tmp_path, config)
    assert [line["groups/resampled"] for line in lines(tmp_path)] == [6, 6]
    assert [line["updates"] for line in lines(tmp_path)] == [0, 0]


async def test_a_resampling_run_resumes_exactly(client, tmp_path):
    config = configure(no_signal="resample", group_size=2)
    await go(client, tmp_path / "whole", config)
    with pytest.raises(Killed):
        await go(client, tmp_path / "killed", config, kill_at(3))
    await go(client, tmp_path / "killed", config)
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")


async def test_the_divergence_of_an_unchanged_model_from_its_base_is_zero(client, tmp_path):
    await go(client, tmp_path, configure(kl_coef=0.5, num_batches=2))
    first, second = lines(tmp_path)
    assert abs(first["kl_base"]) < 1e-6
    assert abs(second["kl_base"]) > 1e-4


async def test_a_strong_penalty_keeps_the_policy_near_its_base(client, tmp_path):
    words = {"num_batches": 6, "batch_size": 16, "group_size": 8, "eval_size": 100}
    await go(client, tmp_path / "free", configure(**words))
    await go(client, tmp_path / "held", configure(kl_coef=3.0, **words))
    free, held = (lines(tmp_path / name)[-1]["eval/reward"] for name in ("free", "held"))
    assert free > held + 0.1


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
async def test_clipped_losses_report_what_they_clip(client, tmp_path, loss):
    config = configure(
        loss_fn=loss, clip_low=0.9, clip_high=1.1, num_substeps=4, batch_size=8, num_batches=2
    )
    await go(client, tmp_path, config)
    assert all(0 <= line["clipped"] <= 1 for line in lines(tmp_path) if line["updates"])
    assert max(line.get("clipped", 0) for line in lines(tmp_path)) > 0


async def test_learning_rates_follow_the_schedule_also_after_a_resume(client, tmp_path):
    optim = OptimConfig(lr=0.4, schedule="linear", warmup_steps=2)
    with pytest.raises(Killed):
        await go(client, tmp_path, configure(optim=optim), kill_at(3))
    await go(client, tmp_path, configure(optim=optim))
    assert [line["lr"] for line in lines(tmp_path)] == pytest.approx([0.2, 0.4, 0.4, 0.3, 0.2, 0.1])


async def test_evaluations_during_the_run_and_the_best_checkpoint(client, tmp_path):
    config = configure(eval_every=1, save_every=0, num_batches=5, optim=OptimConfig(lr=0.5))
    await go(client, tmp_path, config)
    reader = RunReader(tmp_path)
    scores = {line["step"]: line["eval/reward"] for line in reader.metrics()}
    assert sorted(scores) == [0, 1, 2, 3, 4, 5]
    best = reader.best_checkpoint()
    assert best is not None
    assert best.score == max(score for step, score in scores.items() if step > 0)
    saved = {c.step for c in reader.checkpoints()}
    rises = {s for s in range(1, 6) if scores[s] > max(scores[i] for i in range(s))}
    assert saved == rises | {5}


async def test_old_checkpoints_go_and_the_last_and_the_best_stay(client, tmp_path):
    config = configure(save_every=1, keep_last=2, eval_every=1, num_batches=6)
    await go(client, tmp_path, config)
    reader = RunReader(tmp_path)
    best = reader.best_checkpoint()
    assert best is not None
    assert {c.step for c in reader.checkpoints()} == {5, 6, best.step}
    rest = client._rest_client()
    on_service = (await rest.list_user_checkpoints_async(limit=100)).checkpoints
    run_id = reader.checkpoints()[0].state_path.removeprefix("tinker://").split("/")[0]
    paths = {c.tinker_path for c in on_service if run_id in c.tinker_path}
    named = {path for path in paths if path.rsplit("/", 1)[1].isdigit()}
    kept = {p for c in reader.checkpoints() for p in (c.state_path, c.sampler_path)}
    assert named == kept


async def test_a_checkpoint_that_cannot_be_deleted_is_noted(client, tmp_path):
    run = RunWriter(tmp_path, RunInfo("r", "r", RunStatus.RUNNING, [], {}, total_steps=1))
    keeper = Checkpoints(None, run, client._rest_client, keep_last=1)  # type: ignore[arg-type]
    for step in (1, 2):
        saved = SavedModel(f"tinker://no path {step}", f"tinker://no path {step}")
        await keeper.record(step, saved, {}, loop={}, score=None)
    (event,) = [e for e in RunReader(tmp_path).events() if e["kind"] == "warned"]
    assert "could not be deleted" in event["message"]
    assert [c.step for c in RunReader(tmp_path).checkpoints()] == [1, 2]


async def test_limits_on_concurrency_do_not_change_the_numbers(client, tmp_path):
    await go(client, tmp_path / "free", configure(num_batches=2))
    tight = configure(num_batches=2, rollout=RolloutConfig(concurrent=1))
    await go(client, tmp_path / "tight", tight)
    assert timeless(tmp_path / "tight") == timeless(tmp_path / "free")


@pytest.mark.parametrize("mode", ["sync", "stream", "async"])
async def test_waiting_is_measured(client, tmp_path, mode):
    await go(client, tmp_path, configure(mode=mode, num_batches=4, num_minibatches=2))
    for line in lines(tmp_path):
        assert 0 <= line["time/waiting"] <= 1
        whole = line["time/step"]
        assert line["time/sample"] + line["time/sampler_waiting"] == pytest.approx(whole)
        assert line["time/train"] + line["time/trainer_waiting"] == pytest.approx(whole)


async def test_stopping_in_the_middle_of_a_step_leaves_no_trace(client, tmp_path):
    """The stop comes while the first groups of step 2 are already passed through the model."""
    config = configure(mode="stream", num_minibatches=4)
    await go(client, tmp_path / "whole", config)

    def stop_soon(step, stop):
        if step == 1:
            asyncio.get_running_loop().call_later(0.01, stop.set)

    await go(client, tmp_path / "stopped", config, stop_soon)
    await go(client, tmp_path / "stopped", config)
    assert timeless(tmp_path / "stopped") == timeless(tmp_path / "whole")
