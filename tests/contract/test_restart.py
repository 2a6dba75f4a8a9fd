"""After a restart a client goes on where it was; what the disk cannot hold or lost is said, and nothing
is made up."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker

from tests.contract.conftest import BackendFactory, Running, serving
from tests.contract.data import datum
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.settings import EMBEDDED_MODEL

ADAM = tinker.AdamParams(learning_rate=0.1)
SAMPLE = {
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": [72, 73]}]},
    "sampling_params": {"max_tokens": 4, "seed": 5},
    "prompt_logprobs": True,
}


@pytest.fixture(scope="module", params=["fake", "torch"])
def engine(request: pytest.FixtureRequest, backend_factory: BackendFactory) -> BackendFactory:
    return backend_factory if request.param == "fake" else lambda: TorchBackend(device="cpu")


def post(running: Running, call: str, /, **body: Any) -> httpx.Response:
    return httpx.post(f"{running.url}/api/v1/{call}", json=body, timeout=60)


def fetch(running: Running, answer: httpx.Response) -> httpx.Response:
    assert answer.status_code == 200, answer.text
    return post(running, "retrieve_future", request_id=answer.json()["request_id"])


def step(trainer: tinker.TrainingClient) -> float:
    done = trainer.forward_backward([datum()], "cross_entropy")
    trainer.optim_step(ADAM).result()
    return done.result().metrics["loss:sum"]


def newest_states(directory: Path) -> list[Path]:
    return sorted(directory.glob("models/*/*.state"), reverse=True)


def test_a_model_its_samplers_and_its_results_come_back(
    engine: BackendFactory, tmp_path: Path
) -> None:
    with serving(engine(), tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=1)
        for _ in range(3):
            step(trainer)
        model = trainer.get_info().model_id
        ephemeral = trainer.save_weights_and_get_sampling_client()
        sampler = ephemeral._sampling_session_id
        before = fetch(
            running, post(running, "asample", sampling_session_id=sampler, seq_id=50, **SAMPLE)
        )
        step(trainer)  # so the copy is not the newest state of the model
        trainer.forward_backward([datum()], "cross_entropy").result()  # no step followed it yet
        gap = post(running, "optim_step", model_id=model, seq_id=13)
        refused = post(running, "optim_step", model_id=model, seq_id=12, adam_params={"eps": -1.0})
        assert (gap.status_code, refused.status_code) == (200, 400)

    with serving(engine(), tmp_path) as again:
        late = post(again, "retrieve_future", request_id=f"{sampler}/50")
        assert late.content == before.content
        same = fetch(
            again, post(again, "asample", sampling_session_id=sampler, seq_id=51, **SAMPLE)
        )
        assert same.content == before.content, "the sampler drifted"
        # Number 11 was not sent yet: 13 waits for it; 12 is known to be refused.
        stepped = fetch(again, post(again, "optim_step", model_id=model, seq_id=11))
        assert stepped.json()["metrics"]["unclipped_grad_l2:mean"] > 0, "its gradient is lost"
        assert post(again, "retrieve_future", request_id=f"{model}/13").json()["metrics"]
        assert "eps" in post(again, "retrieve_future", request_id=f"{model}/12").json()["error"]


def test_the_numbers_are_those_of_a_run_without_a_restart(
    engine: BackendFactory, tmp_path: Path
) -> None:
    def run(directory: Path, restart: bool) -> bytes:
        with serving(engine(), directory) as running:
            trainer = running.client().create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=1)
            model = trainer.get_info().model_id
            for _ in range(4):
                step(trainer)
            if not restart:
                return scores(running, model)
        with serving(engine(), directory) as running:
            return scores(running, model)

    def scores(running: Running, model: str) -> bytes:
        for number in (9, 10):
            fetch(running, post(running, "optim_step", model_id=model, seq_id=number))
        frozen = post(
            running,
            "save_weights_for_sampler",
            model_id=model,
            seq_id=11,
            sampling_session_seq_id=7,
        )
        sampler = fetch(running, frozen).json()["sampling_session_id"]
        return fetch(
            running, post(running, "asample", sampling_session_id=sampler, seq_id=0, **SAMPLE)
        ).content

    assert run(tmp_path / "one", restart=False) == run(tmp_path / "two", restart=True)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_state_is_set_aside_and_made_again(
    engine: BackendFactory, tmp_path: Path, damage: str
) -> None:
    with serving(engine(), tmp_path) as running:
        trainer = running.client().create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=1)
        model = trainer.get_info().model_id
        for _ in range(3):
            step(trainer)
            running.service.keeper.flush()
        frozen = {"model_id": model, "seq_id": 7, "sampling_session_seq_id": 7}
        sampler = fetch(running, post(running, "save_weights_for_sampler", **frozen)).json()
        name = sampler["sampling_session_id"]
        before = fetch(
            running, post(running, "asample", sampling_session_id=name, seq_id=0, **SAMPLE)
        )

    newest = newest_states(tmp_path)[0]
    whole = newest.read_bytes()
    middle = len(whole) // 2
    broken = {
        "cut": whole[:middle],
        "flip": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
    }[damage]
    newest.write_bytes(broken)
    with serving(engine(), tmp_path) as again:
        frozen = {"model_id": model, "seq_id": 8, "sampling_session_seq_id": 8}
        name = fetch(again, post(again, "save_weights_for_sampler", **frozen)).json()[
            "sampling_session_id"
        ]
        after = fetch(again, post(again, "asample", sampling_session_id=name, seq_id=0, **SAMPLE))
        assert after.content == before.content
        assert newest.with_suffix(".damaged").read_bytes() == broken, "nothing is overwritten"


def test_without_any_good_state_the_model_says_where_to_go_on(
    backend_factory: BackendFactory, tmp_path: Path
) -> None:
    with serving(backend_factory(), tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
        for _ in range(4):
            step(trainer)
            running.service.keeper.flush()
        saved = trainer.save_state("kept").result().path
        loss = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        model = trainer.get_info().model_id
        running.service.keeper.flush()
    states = newest_states(tmp_path)
    assert len(states) == 2
    for state in states:
        state.write_bytes(b"")
    with serving(backend_factory(), tmp_path) as again:
        gone = post(again, "optim_step", model_id=model, seq_id=11)
        assert gone.status_code == 404
        assert saved in gone.json()["detail"]
        resumed = again.client().create_training_client_from_state_with_optimizer(saved)
        found = resumed.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        assert found == pytest.approx(loss)


def test_a_base_model_that_is_away_costs_nothing(tokenizer_directory: Path, tmp_path: Path) -> None:
    def engine(*names: str) -> FakeBackend:
        return FakeBackend(names=names, directory=tokenizer_directory)

    with serving(engine(EMBEDDED_MODEL, "away"), tmp_path) as running:
        trainer = running.client().create_lora_training_client("away", rank=4)
        model = trainer.get_info().model_id
        step(trainer)
        waiting = post(running, "optim_step", model_id=model, seq_id=4).json()
    with serving(engine(EMBEDDED_MODEL), tmp_path) as without:
        refused = post(without, "optim_step", model_id=model, seq_id=3)
        assert refused.status_code == 404
        assert "no base model" in refused.json()["detail"]
        asked = post(without, "retrieve_future", request_id=waiting["request_id"])
        assert "no base model" in asked.json()["detail"]
    with serving(engine(EMBEDDED_MODEL, "away"), tmp_path) as again:
        assert fetch(again, post(again, "optim_step", model_id=model, seq_id=3)).json()["metrics"]
        done = post(again, "retrieve_future", request_id=waiting["request_id"])
        assert done.json()["metrics"]


def test_a_loaded_checkpoint_may_be_deleted(engine: BackendFactory, tmp_path: Path) -> None:
    with serving(engine(), tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
        step(trainer)
        saved = trainer.save_state("first").result().path
        other = client.create_training_client_from_state_with_optimizer(saved)
        model = other.get_info().model_id
        loss = other.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        client.create_rest_client().delete_checkpoint_from_tinker_path(saved).result()
    with serving(engine(), tmp_path) as again:
        frozen = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 9}
        assert fetch(again, post(again, "save_weights_for_sampler", **frozen)).json()[
            "sampling_session_id"
        ]
        assert loss > 0


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow: every write is refused by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_and_waited_for(engine: BackendFactory, tmp_path: Path) -> None:
    with serving(engine(), tmp_path) as running:
        trainer = running.client().create_lora_training_client(EMBEDDED_MODEL, rank=4)
        model = trainer.get_info().model_id
        for _ in range(3):
            step(trainer)
        running.service.keeper.flush()
        states = {file: file.read_bytes() for file in newest_states(tmp_path)[:1]}
        assert states
        with full_disk():
            answer = post(running, "optim_step", model_id=model, seq_id=7)
            assert answer.status_code == 503, "the SDK asks again for minutes"
            assert "space" in answer.json()["detail"]
            health = httpx.get(f"{running.url}/api/v1/healthz").json()
            assert health["status"] == "degraded"
            assert "space" in health["trouble"]
        assert all(file.read_bytes() == held for file, held in states.items())
        assert step(trainer) > 0, "the number is not used up"
        assert httpx.get(f"{running.url}/api/v1/healthz").json()["status"] == "ok"


def test_a_state_that_cannot_be_written_costs_nothing(
    engine: BackendFactory, tmp_path: Path
) -> None:
    """The journal can be written, the state cannot: the requests are kept instead."""
    with serving(engine(), tmp_path) as running:
        trainer = running.client().create_lora_training_client(EMBEDDED_MODEL, rank=4, seed=1)
        model = trainer.get_info().model_id
        running.service.keeper.flush()
        blocked = tmp_path / "models" / model
        blocked.write_text("in the way")  # where its states would go
        for _ in range(3):
            step(trainer)
        running.service.keeper.flush()
        assert "in the way" in blocked.read_text()
        assert "could not be written" in running.service.health()["trouble"]
        loss = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
    blocked.unlink()
    with serving(engine(), tmp_path) as again:
        session = model.partition(":")[0]
        saved = fetch(again, post(again, "save_weights", model_id=model, seq_id=8, path="x")).json()
        made = post(
            again,
            "load_weights",
            session_id=session,
            model_seq_id=1,
            path=saved["path"],
            optimizer=True,
        )
        assert fetch(again, made).json()["model_id"] == f"{session}:train:1"
        resumed = again.client().create_training_client_from_state_with_optimizer(saved["path"])
        found = resumed.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        assert found == pytest.approx(loss, rel=1e-6)


def test_results_of_an_earlier_process_can_be_fetched(
    backend_factory: BackendFactory, tmp_path: Path
) -> None:
    with serving(backend_factory(), tmp_path) as running:
        client = running.client()
        sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
        name = sampler._sampling_session_id
        asked = [
            post(running, "asample", sampling_session_id=name, seq_id=3, **SAMPLE) for _ in range(3)
        ]
        ids = {answer.json()["request_id"] for answer in asked}
        assert len(ids) == 1
        first = fetch(running, asked[0])
        assert first.headers["content-type"] == "application/x-protobuf"
    with serving(backend_factory(), tmp_path) as again:
        future = ids.pop()
        assert post(again, "retrieve_future", request_id=future).content == first.content
        poll = {"target": {"sampling_session_id": name}, "prev_cursor": 5}
        heard = post(again, "retrieve_futures", **poll).json()
        assert [one["request_id"] for one in heard["completions"]] == [future]
        assert heard["cursor"] > 5
