"""Every loss through the unmodified SDK: settings, several targets a token, losses of the client's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tinker
import torch

from tests.contract.conftest import BackendFactory
from tests.contract.data import TOKENS, datum
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend

LENGTH = len(TOKENS) - 1
POLICY = {"logprobs": [-3.0] * LENGTH, "advantages": [0.5, -1.0, 0.0, 2.0, 0.1, -0.3, 1.0]}
MASK = [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}


@pytest.fixture(scope="module", params=["fake", "torch"])
def backend_factory(request: pytest.FixtureRequest, tokenizer_directory: Path) -> BackendFactory:
    if request.param == "fake":
        return lambda: FakeBackend(directory=tokenizer_directory)
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


def gradient_norm(trainer: tinker.TrainingClient) -> float:
    """Of what the last passes left; the weights stay as they are."""
    metrics = trainer.optim_step(tinker.AdamParams(learning_rate=0.0)).result().metrics
    assert metrics is not None
    return metrics["unclipped_grad_l2:mean"]


def logprobs_of(output: tinker.ForwardBackwardOutput, index: int = 0) -> np.ndarray:
    return output.loss_fn_outputs[index]["logprobs"].to_numpy()


def wide(columns: int, seed: int, *, sparse: bool = True) -> tinker.Datum:
    """Several targets a token; torch tensors go as compressed sparse rows where that is smaller."""
    random = np.random.default_rng(seed)
    shape = (LENGTH, columns)
    listed = random.random(shape) < (0.15 if sparse else 1.1)
    targets = torch.from_numpy(random.integers(1, 200, shape) * listed)
    weights = torch.from_numpy((random.normal(size=shape) * listed).astype(np.float32))
    made = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )
    assert (made.loss_fn_inputs["target_tokens"].sparse_crow_indices is not None) == sparse
    return made


@pytest.mark.parametrize(
    ("loss", "config"),
    [
        ("importance_sampling", None),
        ("ppo", None),
        ("ppo", {"clip_high_threshold": 1.5}),
        ("cispo", None),
        ("dro", {"beta": 0.05}),
        ("gspo", CLIP),
    ],
)
def test_losses_of_a_policy(trainer, loss, config) -> None:
    data = [datum(**POLICY, sequence_ratio_mask=MASK)]
    result = trainer.forward_backward(data, loss, config).result()
    lp = logprobs_of(result).astype(np.float64)
    q, advantages = -3.0, np.array(POLICY["advantages"])
    assert lp.shape == (LENGTH,)
    ratio = np.exp(lp - q)
    if loss == "gspo":
        ratio = np.full(LENGTH, np.exp((lp - q)[2:].mean()))
    bounds = {"cispo": (0.0, 4.0), "gspo": (0.9, 1.1)}.get(loss, (0.8, 1.2))
    clipped = np.clip(ratio, bounds[0], (config or {}).get("clip_high_threshold", bounds[1]))
    expected = {
        "importance_sampling": -ratio * advantages,
        "cispo": -clipped * lp * advantages,
        "dro": -(lp * advantages - 0.5 * 0.05 * (lp - q) ** 2),
    }.get(loss, -np.minimum(ratio * advantages, clipped * advantages))
    assert result.metrics["loss:sum"] == pytest.approx(expected.sum(), rel=1e-4)
    assert gradient_norm(trainer) > 0


def test_bounds_may_differ_by_token(trainer) -> None:
    free = trainer.forward_backward([datum(**POLICY)], "importance_sampling").result()
    gradient_norm(trainer)
    ratio = np.exp(logprobs_of(free) + 3.0)
    shut = {"clip_low_threshold": ratio, "clip_high_threshold": ratio}
    inside = trainer.forward_backward([datum(**POLICY, **shut)], "ppo").result()
    assert inside.metrics["loss:sum"] == pytest.approx(free.metrics["loss:sum"], rel=1e-4)
    gradient_norm(trainer)


@pytest.mark.parametrize("sparse", [True, False])
def test_several_targets_a_token(trainer, sparse) -> None:
    data = [wide(24 if sparse else 2, 0, sparse=sparse), datum(), wide(40, 1)]
    result = trainer.forward_backward(data, "cross_entropy").result()
    expected = 0.0
    for one, output in zip(data, result.loss_fn_outputs, strict=True):
        targets = one.loss_fn_inputs["target_tokens"].to_numpy()
        assert output["logprobs"].to_numpy().shape == targets.shape
        weights = one.loss_fn_inputs.get("weights")
        lp = output["logprobs"].to_numpy()
        expected -= (lp if weights is None else lp * weights.to_numpy()).sum()
    assert result.metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-4)
    # each column is what a plain datum with these targets gives
    targets = data[0].loss_fn_inputs["target_tokens"].to_numpy()
    plain = [
        tinker.Datum(
            model_input=data[0].model_input, loss_fn_inputs={"target_tokens": targets[:, k].copy()}
        )
        for k in range(2)
    ]
    columns = trainer.forward(plain, "cross_entropy").result()
    for k in range(2):
        np.testing.assert_allclose(
            logprobs_of(result)[:, k], logprobs_of(columns, k), atol=1e-5, rtol=0
        )
    assert gradient_norm(trainer) > 0


def test_a_loss_of_the_clients_own(trainer) -> None:
    """A distillation loss over several targets: the same gradient as the weights it comes down to."""
    data = [wide(24, 3), wide(2, 4, sparse=False)]
    weights = [one.loss_fn_inputs["weights"].to_torch() for one in data]

    def distill(data, logprobs_list):
        loss = sum(-(w * lp).sum() for w, lp in zip(weights, logprobs_list, strict=True))
        return loss, {"mine:sum": 7.0}

    result = trainer.forward_backward_custom(data, distill).result()
    by_hand = gradient_norm(trainer)
    direct = trainer.forward_backward(data, "cross_entropy").result()
    assert result.metrics["mine:sum"] == 7.0
    expected = direct.metrics["loss:sum"]
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
    assert result.metrics["surrogate_loss:sum"] == pytest.approx(expected, rel=1e-4)
    assert gradient_norm(trainer) == pytest.approx(by_hand, rel=1e-4)


def test_a_nonlinear_loss_of_the_clients_own_equals_ours(trainer) -> None:
    data = [datum(**POLICY)]

    def importance(data, logprobs_list):
        q = data[0].loss_fn_inputs["logprobs"].to_torch()
        advantages = data[0].loss_fn_inputs["advantages"].to_torch()
        return -(torch.exp(logprobs_list[0] - q) * advantages).sum(), {}

    mine = trainer.forward_backward_custom(data, importance).result()
    norm = gradient_norm(trainer)
    ours = trainer.forward_backward(data, "importance_sampling").result()
    assert mine.metrics["loss:sum"] == pytest.approx(ours.metrics["loss:sum"], rel=1e-4)
    assert gradient_norm(trainer) == pytest.approx(norm, rel=1e-3)


def test_a_traced_loss_runs_in_the_client(client, trainer) -> None:
    def weighted(logprobs, weights):
        loss = -(logprobs * weights).sum()
        return loss, {"custom/weighted:sum": loss}

    handle = client.create_custom_loss(weighted, input_ranks={"logprobs": 1, "weights": 1}).result()
    data = [datum(weights=[0.5] * LENGTH)]
    mine = trainer.forward_backward_custom(data, handle).result()
    norm = gradient_norm(trainer)
    ours = trainer.forward_backward(data, "cross_entropy").result()
    assert mine.metrics["custom/weighted:sum"] == pytest.approx(ours.metrics["loss:sum"], rel=1e-4)
    assert gradient_norm(trainer) == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    ("data", "loss", "config", "words"),
    [
        ([datum(**POLICY)], "dro", None, "loss_fn_config['beta']"),
        ([datum(**POLICY, sequence_ratio_mask=MASK)], "gspo", None, "is not public"),
        ([datum(**POLICY)], "gspo", CLIP, "sequence_ratio_mask"),
        ([datum(**POLICY)], "stable_reinforce", None, "formula is not public"),
        ([datum(**POLICY)], "custom", {"loss_id": "x"}, "forward_backward_custom"),
        ([datum(**POLICY, mask=MASK)], "ppo", None, "has no input 'mask'"),
        ([datum(**POLICY)], "ppo", {"clip_low": 0.1}, "has no setting 'clip_low'"),
        ([wide(3, 0, sparse=False)], "ppo", None, "needs loss_fn_inputs"),
    ],
)
def test_what_is_not_there_is_refused_with_a_sentence(trainer, data, loss, config, words) -> None:
    with pytest.raises(tinker.APIStatusError) as caught:
        trainer.forward_backward(data, loss, config).result()
    assert caught.value.status_code == 400
    assert words in caught.value.response.json()["detail"]
    assert trainer.forward([datum()], "cross_entropy").result(timeout=10).metrics
