"""After a restart, what was in memory is gone and says so; what was saved can be used."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import tinker

from tests.contract.conftest import BackendFactory, serving
from tests.contract.data import datum, prompt
from tinsmith.settings import EMBEDDED_MODEL


def test_restart(backend_factory: BackendFactory, tmp_path: Path) -> None:
    with serving(backend_factory(), tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
        trainer.forward_backward([datum()], "cross_entropy").result()
        trainer.optim_step(tinker.AdamParams(learning_rate=0.1)).result()
        saved = trainer.save_state("kept").result().path
        loss = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        session, model = client.holder.get_session_id(), trainer.get_info().model_id
        ephemeral = trainer.save_weights_and_get_sampling_client()
        served = client.create_sampling_client(model_path=saved)
        scored = served.compute_logprobs(prompt(6)).result()
        # One that can never run: its neighbour before it does not come.
        pending = httpx.post(
            f"{running.url}/api/v1/optim_step", json={"model_id": model, "seq_id": 1000}
        ).json()["request_id"]
        ids = [one._sampling_session_id for one in (ephemeral, served)]

    with serving(backend_factory(), tmp_path) as again:

        def post(path: str, **body: object) -> httpx.Response:
            return httpx.post(f"{again.url}/api/v1/{path}", json=body)

        lost = post("retrieve_future", request_id=pending)
        assert lost.status_code == 200
        assert "restarted" in lost.json()["error"]
        refused = post("optim_step", model_id=model, seq_id=7)
        assert refused.status_code == 404
        assert "restarted" in refused.json()["detail"]
        assert saved in refused.json()["detail"]
        assert post("session_heartbeat", session_id=session).status_code == 200
        sample = {
            "seq_id": 50,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [72]}]},
            "sampling_params": {"max_tokens": 1},
        }
        gone = post("asample", sampling_session_id=ids[0], **sample)
        assert (gone.status_code, "restarted" in gone.json()["detail"]) == (404, True)
        assert post("asample", sampling_session_id=ids[1], **sample).status_code == 200

        client = again.client()
        sampler = client.create_sampling_client(model_path=saved)
        assert sampler.compute_logprobs(prompt(6)).result()[1:] == pytest.approx(scored[1:])
        resumed = client.create_training_client_from_state_with_optimizer(saved)
        found = resumed.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        assert found == pytest.approx(loss)
        client.close("success").result()


def test_results_of_an_earlier_process_can_be_fetched(
    backend_factory: BackendFactory, tmp_path: Path
) -> None:
    with serving(backend_factory(), tmp_path) as running:
        client = running.client()
        sampler = client.create_sampling_client(base_model=EMBEDDED_MODEL)
        body = {
            "sampling_session_id": sampler._sampling_session_id,
            "seq_id": 3,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [72]}]},
            "sampling_params": {"max_tokens": 1},
        }
        ids = {
            httpx.post(f"{running.url}/api/v1/asample", json=body).json()["request_id"]
            for _ in range(3)
        }
        assert len(ids) == 1
        future = {"request_id": ids.pop()}
        first = httpx.post(f"{running.url}/api/v1/retrieve_future", json=future)
        assert first.headers["content-type"] == "application/x-protobuf"
    with serving(backend_factory(), tmp_path) as again:
        second = httpx.post(f"{again.url}/api/v1/retrieve_future", json=future)
        assert second.content == first.content
        poll = {"target": {"sampling_session_id": body["sampling_session_id"]}, "prev_cursor": 5}
        heard = httpx.post(f"{again.url}/api/v1/retrieve_futures", json=poll).json()
        assert [one["request_id"] for one in heard["completions"]] == [future["request_id"]]
        assert heard["cursor"] > 5
