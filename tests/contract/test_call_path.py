"""The calls of a training script, with the unmodified SDK over HTTP."""

from __future__ import annotations

import pickle
from pathlib import Path

import httpx
import numpy as np
import pytest
import tinker
import torch

from tests.contract.conftest import BackendFactory, Running
from tests.contract.data import TOKENS, datum, prompt
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ADAM = tinker.AdamParams(learning_rate=0.003)


@pytest.fixture(scope="module", params=["fake", "torch"])
def backend_factory(request: pytest.FixtureRequest, tokenizer_directory: Path) -> BackendFactory:
    """The calls must work whichever engine carries them out."""
    if request.param == "fake":
        return lambda: FakeBackend(directory=tokenizer_directory)
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


def losses(trainer: tinker.TrainingClient, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        passed = trainer.forward_backward([datum()], "cross_entropy")
        stepped = trainer.optim_step(ADAM)
        found.append(passed.result().metrics["loss:sum"])
        stepped.result()
    return found


def test_loss_falls(trainer: tinker.TrainingClient) -> None:
    found = losses(trainer, 4)
    assert found == sorted(set(found), reverse=True)


def test_gradients_add_up_until_the_step(trainer: tinker.TrainingClient) -> None:
    still = tinker.AdamParams(learning_rate=0.0)
    norms = []
    trainer.optim_step(still).result()  # whatever another test left
    for passes in (1, 3, 0):
        for _ in range(passes):
            trainer.forward_backward([datum()], "cross_entropy")
        metrics = trainer.optim_step(still).result().metrics
        assert metrics is not None
        norms.append(metrics["unclipped_grad_l2:mean"])
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-3)
    assert norms[2] == 0.0


def test_forward_gives_logprobs_in_order_and_leaves_weights_alone(
    trainer: tinker.TrainingClient,
) -> None:
    data = [datum(TOKENS[:n]) for n in (3, 8, 5)]
    first = trainer.forward(data, "cross_entropy").result()
    trainer.optim_step(tinker.AdamParams(learning_rate=0.0)).result()
    again = trainer.forward(data, "cross_entropy").result()
    lengths = [len(out["logprobs"].data) for out in first.loss_fn_outputs]
    assert lengths == [2, 7, 4]
    for a, b in zip(first.loss_fn_outputs, again.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(a["logprobs"].data, b["logprobs"].data, rtol=1e-5)
        assert np.isfinite(a["logprobs"].data).all()


def test_importance_sampling_and_ppo(trainer: tinker.TrainingClient) -> None:
    logprobs = trainer.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    rl = datum(logprobs=list(logprobs.data), advantages=[1.0] * 7)
    for loss, config in (("importance_sampling", None), ("ppo", {"clip_low_threshold": 0.9})):
        out = trainer.forward(data=[rl], loss_fn=loss, loss_fn_config=config).result()
        assert out.metrics["loss:sum"] == pytest.approx(-7.0, abs=1e-3)


def test_forward_backward_custom(trainer: tinker.TrainingClient) -> None:
    def loss(data: list[tinker.Datum], logprobs: list[torch.Tensor]):
        value = sum(-lp.sum() for lp in logprobs)
        return value, {"mine": value.item()}

    before = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
    out = trainer.forward_backward_custom([datum()], loss).result()
    trainer.optim_step(ADAM).result()
    after = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
    assert out.metrics["mine"] == pytest.approx(before, rel=1e-3)
    assert after < before


def test_info_and_tokenizer(trainer: tinker.TrainingClient) -> None:
    info = trainer.get_info()
    assert info.model_data.model_name == EMBEDDED_MODEL
    assert (info.is_lora, info.lora_rank) == (True, 8)
    tokenizer = trainer.get_tokenizer()
    ids = tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.decode(ids).replace(" ", "") == "Hello"


def test_capabilities(client: tinker.ServiceClient) -> None:
    models = client.get_server_capabilities().supported_models
    assert EMBEDDED_MODEL in [model.model_name for model in models]


def test_ephemeral_sampler_keeps_its_moment(trainer: tinker.TrainingClient) -> None:
    sampler = trainer.save_weights_and_get_sampling_client()
    before = sampler.compute_logprobs(prompt(6)).result()
    losses(trainer, 2)
    assert sampler.compute_logprobs(prompt(6)).result() == before
    newer = trainer.save_weights_and_get_sampling_client()
    assert newer.compute_logprobs(prompt(6)).result() != before
    assert before[0] is None
    assert all(value < 0 for value in before[1:])


def test_logprobs_of_sampler_and_trainer_agree(trainer: tinker.TrainingClient) -> None:
    sampler = trainer.save_weights_and_get_sampling_client()
    scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(TOKENS)).result()
    trained = trainer.forward([datum()], "cross_entropy").result()
    np.testing.assert_allclose(
        scored[1:], trained.loss_fn_outputs[0]["logprobs"].data, rtol=1e-4, atol=1e-5
    )


def test_sampling_is_reproducible_by_seed(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    params = tinker.SamplingParams(max_tokens=8, seed=5, stop=[], temperature=1.0)
    first = sampler.sample(prompt(), 3, params).result()
    again = sampler.sample(prompt(), 3, params).result()
    tokens = [sequence.tokens for sequence in first.sequences]
    assert tokens == [sequence.tokens for sequence in again.sequences]
    assert len({tuple(one) for one in tokens}) > 1
    for sequence in first.sequences:
        assert sequence.stop_reason == "length"
        assert len(sequence.tokens) == len(sequence.logprobs) == 8


def test_stops_include_what_ended_the_sample(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    free = sampler.sample(
        prompt(), 1, tinker.SamplingParams(max_tokens=6, temperature=0.0, stop=[])
    ).result()
    tokens = free.sequences[0].tokens
    stopped = sampler.sample(
        prompt(), 1, tinker.SamplingParams(max_tokens=6, temperature=0.0, stop=[tokens[2]])
    ).result()
    end = tokens.index(tokens[2]) + 1
    assert stopped.sequences[0].stop_reason == "stop"
    assert stopped.sequences[0].tokens == tokens[:end]


def test_prompt_logprobs_of_the_last_n(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    whole = sampler.compute_logprobs(prompt(6)).result()
    tail = sampler.compute_logprobs(prompt(6), prompt_logprobs_last_n=2).result()
    assert tail[:4] == [None] * 4
    assert tail[4:] == pytest.approx(whole[4:])


def test_many_samples_at_once(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    params = tinker.SamplingParams(max_tokens=4, stop=[])
    waiting = [sampler.sample(prompt(), 1, params) for _ in range(100)]
    results = [one.result(timeout=60) for one in waiting]
    assert all(len(one.sequences[0].tokens) == 4 for one in results)
    ids = {one.sequences[0].sequence_id for one in results}
    assert len(ids) == 100


def test_pickled_sampler_is_another_client_of_the_same_session(
    client: tinker.ServiceClient,
) -> None:
    sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
    clone = pickle.loads(pickle.dumps(sampler))
    params = tinker.SamplingParams(max_tokens=4, seed=3, stop=[])
    mine, others = sampler.sample(prompt(), 1, params), clone.sample(prompt(), 1, params)
    assert mine.result().sequences[0].tokens == others.result().sequences[0].tokens
    assert sampler.get_base_model()


def test_saved_weights_can_be_sampled_from(
    client: tinker.ServiceClient, trainer: tinker.TrainingClient
) -> None:
    path = trainer.save_weights_for_sampler("for-sampling").result().path
    assert path.endswith("/sampler_weights/for-sampling")
    saved = client.create_sampling_client(model_path=path)
    fresh = trainer.save_weights_and_get_sampling_client()
    a = saved.compute_logprobs(prompt(6)).result()
    b = fresh.compute_logprobs(prompt(6)).result()
    np.testing.assert_allclose(a[1:], b[1:], rtol=1e-5)
    # A reference policy is made with both; the path wins.
    both = client.create_sampling_client(model_path=path, base_model=EMBEDDED_MODEL)
    assert both.compute_logprobs(prompt(6)).result()[1:] == pytest.approx(a[1:])


def test_state_goes_out_and_comes_back(
    client: tinker.ServiceClient, trainer: tinker.TrainingClient
) -> None:
    losses(trainer, 2)
    path = trainer.save_state("000002").result().path
    ahead = losses(trainer, 3)
    trainer.load_state_with_optimizer(path).result()
    assert losses(trainer, 3) == pytest.approx(ahead, rel=1e-5)
    other = client.create_training_client_from_state_with_optimizer(path)
    assert losses(other, 3) == pytest.approx(ahead, rel=1e-5)
    weights_only = client.create_training_client_from_state(path)
    assert losses(weights_only, 1) == pytest.approx(ahead[:1], rel=1e-5)


def test_same_name_twice_fails_unless_overwritten(trainer: tinker.TrainingClient) -> None:
    trainer.save_state("twice").result()
    with pytest.raises(tinker.RequestFailedError, match="exists already") as caught:
        trainer.save_state("twice").result()
    assert caught.value.category.value == "user"
    trainer.save_state("twice", overwrite=True, ttl_seconds=7200).result()
    trainer.save_weights_for_sampler("twice").result()
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        trainer.save_weights_for_sampler("twice").result()


def test_two_models_train_side_by_side(client: tinker.ServiceClient) -> None:
    pair = [client.create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=3) for _ in range(2)]
    alone = losses(client.create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=3), 3)
    waiting = []
    for _ in range(3):
        for one in pair:
            waiting.append(one.forward_backward([datum()], "cross_entropy"))
            one.optim_step(ADAM)
    found = [one.result().metrics["loss:sum"] for one in waiting]
    assert found[0::2] == pytest.approx(alone, rel=1e-5)
    assert found[1::2] == pytest.approx(alone, rel=1e-5)


def test_a_finished_session_is_over(server: Running) -> None:
    client = server.client()
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
    model_id = trainer.get_info().model_id
    trainer.save_state("last").result()
    client.close("success").result()
    answer = httpx.post(f"{server.url}/api/v1/get_info", json={"model_id": model_id})
    assert answer.status_code == 410
    assert "is over" in answer.json()["detail"]
    other = server.client()
    resumed = other.create_training_client_from_state(f"tinker://{model_id}/weights/last")
    assert resumed.get_info().lora_rank == 4
    other.close("success").result()
