"""Token by token on the embedded model: on-policy importance weights are 1, an unchanged model is its base, and
losses of real rollouts equal float64 references."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import tinker

from tests.contract.conftest import BackendFactory
from tinsmith.chat.render import make_renderer
from tinsmith.envs.math import MathConfig
from tinsmith.rl.advantages import ESTIMATORS, advantages_of
from tinsmith.rl.config import OptimConfig, TrainConfig
from tinsmith.rl.datums import TrainingSequence, to_sequences
from tinsmith.rl.kl import BasePenalty
from tinsmith.rl.losses import LOSSES
from tinsmith.rl.model import TrainedModel
from tinsmith.rl.rollouts import roll_groups
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ESTIMATOR = ESTIMATORS["default"](0.0)


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


def configure(**values) -> TrainConfig:
    return TrainConfig(**{"env": MathConfig(), "optim": OptimConfig(lr=1e-2), **values})


@pytest.fixture
def trainer(client) -> tinker.TrainingClient:
    return client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=1)


async def rollouts(trainer, model: TrainedModel, version: int) -> list[TrainingSequence]:
    """Sampled from the weights as they are now."""
    policy = await model.publish(version)
    tokenizer = await asyncio.to_thread(trainer.get_tokenizer)
    problems = MathConfig().build(make_renderer(tokenizer, EMBEDDED_MODEL), 0, "train")
    groups = await roll_groups(
        {i: problems.problem(i) for i in range(8)},
        policy,
        8,
        MathConfig().limits(),
        seed=version,
        on_done=lambda *_: None,
    )
    return [
        s for g in groups for s in to_sequences(g, advantages_of(g, ESTIMATOR, keep_alike=True))
    ]


async def trainer_gaps(trainer, sequences, loss="importance_sampling", settings=None):
    """What the trainer's log-probabilities of the sampled tokens are more than the sampler's; the loss."""
    sending = await trainer.forward_async([s.datum() for s in sequences], loss, settings)
    answer = await sending.result_async()
    gaps = [
        (o["logprobs"].to_numpy() - s.logprobs_T[1:])[s.sampled_T[1:]]
        for o, s in zip(answer.loss_fn_outputs, sequences, strict=True)
    ]
    return np.concatenate(gaps).astype(np.float64), answer.metrics["loss:sum"]


async def learn(model: TrainedModel, sequences, step: int) -> None:
    from tinsmith.rl.waiting import Busy

    update = model.begin_update(step, Busy())
    await update.add(sequences)
    await update.step()
    await update.result()


async def test_weights_of_on_policy_tokens_are_one(trainer):
    model = TrainedModel(trainer, configure())
    for version in range(3):  # untrained, and after updates
        sequences = await rollouts(trainer, model, version)
        gaps, _ = await trainer_gaps(trainer, sequences)
        assert len(gaps) > 100
        assert np.abs(np.expm1(gaps)).max() < 1e-5
        await learn(model, sequences, version + 1)


async def test_weights_of_older_tokens_are_those_of_the_policy_that_spoke(trainer):
    model = TrainedModel(trainer, configure())
    old = await rollouts(trainer, model, 0)
    before, _ = await trainer_gaps(trainer, old)
    await learn(model, old, 1)
    after, _ = await trainer_gaps(trainer, old)
    assert np.abs(np.expm1(before)).max() < 1e-5
    assert np.abs(np.expm1(after)).max() > 0.05


async def test_an_unchanged_model_is_its_base_token_by_token(client, trainer):
    model = TrainedModel(trainer, configure())
    base = await client.create_sampling_client_async(base_model=EMBEDDED_MODEL)
    sequences = await rollouts(trainer, model, 0)
    penalised, ratios = await BasePenalty(base, 0.5).apply(sequences)
    assert np.abs(np.concatenate(ratios)).max() < 1e-5
    assert abs(np.concatenate(ratios).mean(dtype=np.float64)) < 1e-6
    for s, p in zip(sequences, penalised, strict=True):
        np.testing.assert_allclose(p.advantages_T, s.advantages_T, atol=1e-5)


async def test_the_penalty_by_hand(client, trainer):
    """Advantages fall by coef * (log ratio - its mean) at sampled tokens and nowhere else."""
    model = TrainedModel(trainer, configure())
    await learn(model, await rollouts(trainer, model, 0), 1)
    sequences = await rollouts(trainer, model, 1)
    base = await client.create_sampling_client_async(base_model=EMBEDDED_MODEL)
    penalised, ratios = await BasePenalty(base, 0.25).apply(sequences)
    mean = np.concatenate(ratios).astype(np.float64).mean()
    assert abs(mean) > 1e-3
    for s, p, ratio in zip(sequences, penalised, ratios, strict=True):
        asked = tinker.ModelInput.from_ints(s.tokens_T.tolist())
        scored = np.array((await base.compute_logprobs_async(asked))[1:], dtype=np.float64)
        expected = s.logprobs_T[1:].astype(np.float64) - scored
        np.testing.assert_allclose(ratio, expected[s.sampled_T[1:]], atol=1e-5)
        change = p.advantages_T - s.advantages_T
        np.testing.assert_allclose(change[s.sampled_T], -0.25 * (ratio - mean), atol=1e-5)
        assert not change[~s.sampled_T].any()


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
async def test_losses_of_real_rollouts_equal_float64(trainer, loss):
    config = configure(
        loss_fn=loss, **({} if loss == "importance_sampling" else {"clip_high": 1.1})
    )
    model = TrainedModel(trainer, config)
    sequences = await rollouts(trainer, model, 0)
    await learn(model, sequences, 1)  # so that the ratios are not all 1
    gaps, found = await trainer_gaps(trainer, sequences, loss, LOSSES[loss](config))
    advantages = np.concatenate([s.advantages_T[s.sampled_T] for s in sequences]).astype(np.float64)
    sampler = np.concatenate([s.logprobs_T[s.sampled_T] for s in sequences]).astype(np.float64)
    ratio = np.exp(gaps)
    low, high = config.clips or (0.0, math.inf)
    clipped = np.clip(ratio, low, high)
    expected = {
        "importance_sampling": -(ratio * advantages),
        "ppo": -np.minimum(ratio * advantages, clipped * advantages),
        "cispo": -(clipped * (sampler + gaps) * advantages),
    }[loss].sum()
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
