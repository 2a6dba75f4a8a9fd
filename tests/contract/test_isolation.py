"""Tenants and snapshots do not touch each other: the same numbers to the last bit, with the real engine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import numpy as np
import pytest
import tinker

from tests.contract.conftest import BackendFactory, Running
from tests.contract.data import TOKENS, datum
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ADAM = tinker.AdamParams(learning_rate=0.01)
STILL = tinker.AdamParams(learning_rate=0.0)
FIERCE = tinker.AdamParams(learning_rate=0.05, weight_decay=0.5)
PROMPT = tinker.ModelInput.from_ints(TOKENS)
DATA = [datum([TOKENS[(n + i) % 8] for i in range(5 + n)]) for n in range(3)]
OTHER_DATA = [datum([(40 + 7 * n + 3 * i) % 90 for i in range(6 + n)]) for n in range(4)]


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@dataclass
class Numbers:
    """What a tenant sees of itself."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)


def grad_norm(stepped: tinker.OptimStepResponse) -> float:
    assert stepped.metrics is not None
    return stepped.metrics["unclipped_grad_l2:mean"]


def train(
    trainer: tinker.TrainingClient,
    steps: int,
    data: list[tinker.Datum] = DATA,
    adam: tinker.AdamParams = ADAM,
) -> Numbers:
    seen = Numbers()
    for _ in range(steps):
        passed = trainer.forward_backward(data, "cross_entropy")
        stepped = trainer.optim_step(adam)
        seen.losses.append(passed.result().metrics["loss:sum"])
        seen.norms.append(grad_norm(stepped.result()))
        seen.logprobs += forward(trainer, data)
    return seen


def forward(trainer: tinker.TrainingClient, data: list[tinker.Datum] = DATA) -> list[list[float]]:
    outputs = trainer.forward(data, "cross_entropy").result().loss_fn_outputs
    return [list(one["logprobs"].data) for one in outputs]


def answers(sampler: tinker.SamplingClient) -> tuple[object, ...]:
    """A prompt's log-probabilities, and samples with a seed."""
    params = tinker.SamplingParams(max_tokens=8, seed=11, stop=[], temperature=1.0)
    sampled = sampler.sample(PROMPT, 2, params).result()
    return (
        sampler.compute_logprobs(PROMPT).result(),
        [list(one.tokens) for one in sampled.sequences],
        [list(one.logprobs or []) for one in sampled.sequences],
    )


def new_trainer(client: tinker.ServiceClient, seed: int = 5) -> tinker.TrainingClient:
    return client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=seed)


# snapshots


def test_an_old_sampler_does_not_drift(client: tinker.ServiceClient) -> None:
    trainer = new_trainer(client)
    train(trainer, 1)
    saved = trainer.save_state("early").result().path
    path = trainer.save_weights_for_sampler("old").result().path
    before_it_was_read = client.create_sampling_client(model_path=path)
    samplers = [
        trainer.save_weights_and_get_sampling_client(),
        client.create_sampling_client(model_path=path),
    ]
    first = [answers(sampler) for sampler in samplers]
    assert first[0] == first[1]
    train(trainer, 3, OTHER_DATA, FIERCE)
    newer = trainer.save_weights_and_get_sampling_client()
    assert answers(newer)[0] != first[0][0]
    assert [answers(sampler) for sampler in samplers] == first
    trainer.load_state(saved).result()
    train(trainer, 1)
    assert [answers(sampler) for sampler in samplers] == first
    assert answers(before_it_was_read) == first[0]


def test_sampling_an_older_snapshot_leaves_the_trainer_alone(client: tinker.ServiceClient) -> None:
    trainer, twin = new_trainer(client), new_trainer(client)
    train(trainer, 1)
    path = trainer.save_weights_for_sampler("older").result().path
    olds = [
        trainer.save_weights_and_get_sampling_client(),
        client.create_sampling_client(model_path=path),
    ]
    train(trainer, 2)
    train(twin, 3)
    trained = forward(trainer)
    for old in olds:
        answers(old)
        assert forward(trainer) == trained
    assert train(trainer, 2) == train(twin, 2)


def test_a_gradient_in_the_making_is_not_touched_by_samplers(client: tinker.ServiceClient) -> None:
    trainer, twin = new_trainer(client), new_trainer(client)
    norms: list[float] = []
    for one in (trainer, twin):
        one.forward_backward(DATA, "cross_entropy").result()
        if one is trainer:
            answers(one.save_weights_and_get_sampling_client())
            one.save_state("in-between").result()
        one.forward_backward(OTHER_DATA, "cross_entropy").result()
        norms.append(grad_norm(one.optim_step(ADAM).result()))
    assert norms[0] == norms[1]
    assert forward(trainer) == forward(twin)


# tenants


def decay(server: Running, tenant: tinker.TrainingClient) -> None:
    """Weight decay and large steps."""
    train(tenant, 3, OTHER_DATA, FIERCE)


def load(server: Running, tenant: tinker.TrainingClient) -> None:
    path = tenant.save_state("there").result().path
    train(tenant, 1, OTHER_DATA)
    tenant.load_state(path).result()
    tenant.load_state_with_optimizer(path).result()


def overflow(server: Running, tenant: tinker.TrainingClient) -> None:
    """A loss that is not finite is refused, and so are numbers that are not."""
    wild = datum(TOKENS, logprobs=[-1000.0] * 7, advantages=[1.0] * 7)
    with pytest.raises(tinker.RequestFailedError, match="gradient was dropped"):
        tenant.forward_backward([wild], "importance_sampling").result()
    with pytest.raises(tinker.BadRequestError, match="finite"):
        tenant.forward_backward([datum(weights=[float("nan")] * 7)], "cross_entropy").result()
    tenant.optim_step(ADAM).result()


def ruin(server: Running, tenant: tinker.TrainingClient) -> None:
    """Steps so large that its own weights are of no use any more."""
    tenant.forward_backward(OTHER_DATA, "cross_entropy").result()
    tenant.optim_step(tinker.AdamParams(learning_rate=1e38)).result()
    sampler = tenant.save_weights_and_get_sampling_client()
    with pytest.raises(tinker.RequestFailedError, match="not finite"):
        sampler.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=2)).result()


def unload(server: Running, tenant: tinker.TrainingClient) -> None:
    tenant.forward_backward(OTHER_DATA, "cross_entropy").result()
    post(server, "unload_model", model_id=tenant.model_id)
    with pytest.raises(tinker.APIStatusError):
        tenant.forward(OTHER_DATA, "cross_entropy").result()


def finish(server: Running, tenant: tinker.TrainingClient) -> None:
    """Its session ends with requests of it still waiting."""
    for _ in range(4):
        tenant.forward_backward(OTHER_DATA, "cross_entropy")
    session = tenant.model_id.partition(":")[0]
    post(server, f"sessions/{session}/finish", reason={"type": "success"})


def garbage(server: Running, tenant: tinker.TrainingClient) -> None:
    """What a broken client might send, and one that dies in the middle of a request."""
    proto = {"content-type": "application/x-protobuf"}
    url = f"{server.url}/api/v1/forward_backward"
    for body, headers in (
        (b"\x00\xff" * 500, proto),
        (b"\x28\xb5\x2f\xfd" + b"\x07" * 90, {**proto, "content-encoding": "zstd"}),
        (b"{", {"content-type": "application/json"}),
        (b'{"model_id": "%b", "seq_id": -1}' % tenant.model_id.encode(), {}),
    ):
        assert 400 <= httpx.post(url, content=body, headers=headers).status_code < 500
    for seq_id in (10_000, 2**62):  # never to be reached
        post(server, "optim_step", model_id=tenant.model_id, seq_id=seq_id)
    port = int(server.url.rpartition(":")[2])
    head = b"POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    for sent in (b"POST /api", head, head + b"\x0a" * 5000):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent)


def post(server: Running, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v1/{path}", json=body)


@pytest.fixture(scope="module")
def undisturbed(server: Running) -> tuple[Numbers, Numbers, tuple[object, ...]]:
    """A tenant's two steps, its next two, and what a sampler of it says in between."""
    client = server.client()
    trainer = new_trainer(client, seed=9)
    first = train(trainer, 2)
    said = answers(trainer.save_weights_and_get_sampling_client())
    second = train(trainer, 2)
    client.close("success").result()
    return first, second, said


@pytest.mark.parametrize(
    "trouble", [decay, load, overflow, ruin, unload, finish, garbage], ids=lambda one: one.__name__
)
def test_what_happens_to_one_tenant_does_not_move_another(
    server: Running,
    undisturbed: tuple[Numbers, Numbers, tuple[object, ...]],
    trouble: Callable[[Running, tinker.TrainingClient], None],
) -> None:
    mine, others = server.client(), server.client()
    trainer, neighbour = new_trainer(mine, seed=9), new_trainer(others, seed=9)
    first = train(trainer, 2)
    sampler = trainer.save_weights_and_get_sampling_client()
    trained, said = forward(trainer), answers(sampler)
    passed = trainer.forward_backward(DATA, "cross_entropy")  # its gradient waits for its step
    loss = passed.result().metrics["loss:sum"]
    trouble(server, neighbour)
    assert forward(trainer) == trained
    assert answers(sampler) == said == undisturbed[2]
    norm = grad_norm(trainer.optim_step(ADAM).result())
    logprobs = forward(trainer)
    last = train(trainer, 1)
    second = Numbers([loss, *last.losses], [norm, *last.norms], logprobs + last.logprobs)
    assert (first, second) == undisturbed[:2]
    mine.close("success").result()


def test_two_tenants_in_turn_equal_each_alone(server: Running) -> None:
    clients = [server.client() for _ in range(2)]
    works = ((DATA, ADAM, 3), (OTHER_DATA, FIERCE, 4))
    alone = [
        train(new_trainer(client, seed), 4, data, adam)
        for client, (data, adam, seed) in zip(clients, works, strict=True)
    ]
    pair = [new_trainer(client, work[2]) for client, work in zip(clients, works, strict=True)]
    waiting: list[list[tuple[object, ...]]] = [[], []]
    for _ in range(4):  # nobody waits for anything
        for number, (data, adam, _) in enumerate(works):
            trainer = pair[number]
            waiting[number].append(
                (
                    trainer.forward_backward(data, "cross_entropy"),
                    trainer.optim_step(adam),
                    trainer.forward(data, "cross_entropy"),
                )
            )
    for number, steps in enumerate(waiting):
        seen = Numbers()
        for passed, stepped, scored in steps:
            seen.losses.append(passed.result().metrics["loss:sum"])
            seen.norms.append(grad_norm(stepped.result()))
            seen.logprobs += [list(one["logprobs"].data) for one in scored.result().loss_fn_outputs]
        assert seen == alone[number]
    assert alone[0] != alone[1]
    for client in clients:
        client.close("success").result()


# what the numbers mean


def test_losses_and_gradients_are_sums(client: tinker.ServiceClient) -> None:
    trainer = new_trainer(client)

    def measure(*passes: list[tinker.Datum]) -> tuple[float, float]:
        asked = [trainer.forward_backward(data, "cross_entropy") for data in passes]
        norm = grad_norm(trainer.optim_step(STILL).result())
        return sum(one.result().metrics["loss:sum"] for one in asked), norm

    loss, norm = measure(DATA[:1])
    assert norm > 0.1
    assert measure(DATA[:1], DATA[:1]) == (2 * loss, 2 * norm)
    assert measure(DATA[:1] * 2) == pytest.approx((2 * loss, 2 * norm), rel=1e-5)
    assert measure(DATA[:1] * 5) == pytest.approx((5 * loss, 5 * norm), rel=1e-5)


def test_prompt_logprobs_are_as_many_as_tokens_and_the_first_is_none(
    client: tinker.ServiceClient,
) -> None:
    trainer = new_trainer(client)
    train(trainer, 1)
    sampler = trainer.save_weights_and_get_sampling_client()
    for length in (2, 5, 8):
        tokens = TOKENS[:length]
        scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens)).result()
        assert len(scored) == length
        assert scored[0] is None
        trained = forward(trainer, [datum(tokens)])[0]
        np.testing.assert_allclose(scored[1:], trained, rtol=1e-4, atol=1e-5)
