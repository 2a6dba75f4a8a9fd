"""Keys and owners: who has no key gets nothing, and nobody sees what is another's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from starlette.types import ASGIApp

from tests.contract.conftest import BackendFactory, Running, serving
from tests.contract.data import datum, prompt
from tinsmith.service.app import create_app
from tinsmith.service.core import Service
from tinsmith.service.store.keys import KeyRing
from tinsmith.settings import EMBEDDED_MODEL

SAMPLING = tinker.SamplingParams(max_tokens=2, stop=[])
MISSING = "00000000-0000-4000-8000-000000000000"  # a session nobody has


@dataclass
class Owner:
    """One who has a key, and what belongs to them."""

    url: str
    key: str
    client: tinker.ServiceClient
    trainer: tinker.TrainingClient
    sampler: tinker.SamplingClient
    ids: dict[str, str]

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": self.key}, timeout=60)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key=self.key)


@dataclass
class Keyed:
    running: Running
    keys: KeyRing


@pytest.fixture(scope="module")
def keyed(
    backend_factory: BackendFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keyed]:
    rings: list[KeyRing] = []

    def with_keys(service: Service) -> ASGIApp:
        service.token = ""
        rings.append(KeyRing(service.store))
        return create_app(service, rings[0])

    directory = tmp_path_factory.mktemp("keyed")
    with serving(backend_factory(), directory, make_app=with_keys) as running:
        yield Keyed(running, rings[0])


def owner(keyed: Keyed, name: str) -> Owner:
    _, key = keyed.keys.create(f"{name}-{uuid.uuid4().hex[:8]}", name)
    url = keyed.running.url
    client = tinker.ServiceClient(base_url=url, api_key=key)
    trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=4)
    trainer.forward_backward([datum()], "cross_entropy").result()
    path = trainer.save_state("kept").result().path
    external = trainer.save_weights_for_sampler("used").result().path
    sampler = trainer.save_weights_and_get_sampling_client()
    sampler.sample(prompt(), 1, SAMPLING).result()
    model = path.removeprefix("tinker://").partition("/")[0]
    session = model.partition(":")[0]
    made = httpx.post(
        f"{url}/api/v1/create_sampling_session",
        json={"session_id": session, "sampling_session_seq_id": 99, "model_path": path},
        headers={"X-API-Key": key},
    ).json()
    ids = {
        "session": session,
        "model": model,
        "path": path,
        "sampler_path": external,
        "sampler": made["sampling_session_id"],
        "future": f"{model}/1",
    }
    return Owner(url, key, client, trainer, sampler, ids)


@pytest.fixture(scope="module")
def ann(keyed: Keyed) -> Owner:
    return owner(keyed, "ann")


@pytest.fixture(scope="module")
def bob(keyed: Keyed) -> Owner:
    return owner(keyed, "bob")


# keys


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/create_session"),
        ("POST", "/api/v1/client/config"),
        ("GET", "/api/v1/get_server_capabilities"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("POST", "/api/v1/healthz"),
        ("GET", "/nowhere"),
    ],
)
@pytest.mark.parametrize("key", [None, "tml-wrong", "eyJh.e30.x", ""])
def test_without_a_key_there_is_nothing(
    keyed: Keyed, method: str, path: str, key: str | None
) -> None:
    headers = {} if key is None else {"X-API-Key": key}
    answer = httpx.request(method, keyed.running.url + path, headers=headers, content=b"{}")
    assert answer.status_code == 401
    assert "tinsmith keys create" in answer.json()["detail"]


def test_health_is_for_everybody_and_tells_no_token(keyed: Keyed) -> None:
    answer = httpx.get(f"{keyed.running.url}/api/v1/healthz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert "token" not in answer.json()


def test_the_sdk_shows_the_sentence(keyed: Keyed) -> None:
    client = tinker.ServiceClient(base_url=keyed.running.url, api_key="tml-unknown")
    with pytest.raises(tinker.AuthenticationError, match="unknown or revoked"):
        client.create_lora_training_client(EMBEDDED_MODEL, rank=4)


def test_bearer_tokens_do_as_well(keyed: Keyed, ann: Owner) -> None:
    bearer = {"Authorization": f"Bearer {ann.key}"}
    assert httpx.get(f"{keyed.running.url}/v1/models", headers=bearer).status_code == 200


def test_a_revoked_key_is_refused_at_once(keyed: Keyed) -> None:
    key, secret = keyed.keys.create("brief")
    url, headers = f"{keyed.running.url}/api/v1/auth/apikey/me", {"X-API-Key": secret}
    said = httpx.get(url, headers=headers).json()
    assert (said["key_id"], said["name"]) == (key.id, "brief")
    token = httpx.post(f"{keyed.running.url}/api/v1/auth/token", headers=headers, json={}).json()
    assert httpx.get(url, headers={"X-API-Key": token["jwt"]}).json() == said
    assert httpx.delete(url, headers=headers).status_code == 200
    for credential in (secret, token["jwt"]):
        assert httpx.get(url, headers={"X-API-Key": credential}).status_code == 401


def test_keys_do_not_make_keys(keyed: Keyed, ann: Owner) -> None:
    with ann.http() as http:
        answer = http.post("/api/v1/auth/apikey", json={"name": "x", "note": ""})
    assert answer.status_code == 403
    assert "tinsmith keys create" in answer.json()["detail"]


# owners

# Every call that takes an id: method, path, body. {session} and the like are filled in.
API = "/api/v1"
RUN = f"{API}/training_runs/{{model}}"
ONE = f"{RUN}/checkpoints/weights/kept"
TARGET = {"type": "sampling_session", "sampling_session_id": "{sampler}"}
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
DATUM = {
    "model_input": PROMPT,
    "loss_fn_inputs": {"target_tokens": {"data": [1, 2], "dtype": "int64", "shape": [2]}},
}
PASS = {
    "model_id": "{model}",
    "seq_id": 900,
    "forward_input": {"data": [DATUM], "loss_fn": "cross_entropy"},
}
SAVE = {"model_id": "{model}", "seq_id": 900, "path": "theirs"}
CALLS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", f"{API}/session_heartbeat", {"session_id": "{session}"}),
    (
        "POST",
        f"{API}/create_model",
        {
            "session_id": "{session}",
            "model_seq_id": 7,
            "base_model": EMBEDDED_MODEL,
            "lora_config": {"rank": 2},
        },
    ),
    ("POST", f"{API}/get_info", {"model_id": "{model}"}),
    ("POST", f"{API}/forward_backward", PASS),
    ("POST", f"{API}/forward", PASS),
    ("POST", f"{API}/optim_step", {"model_id": "{model}", "seq_id": 900}),
    ("POST", f"{API}/save_weights", SAVE),
    ("POST", f"{API}/save_weights_for_sampler", SAVE),
    ("POST", f"{API}/save_weights_external", SAVE),
    (
        "POST",
        f"{API}/load_weights",
        {"model_id": "{model}", "seq_id": 900, "path": "{path}", "optimizer": False},
    ),
    ("POST", f"{API}/unload_model", {"model_id": "{model}"}),
    ("POST", f"{API}/weights_info", {"tinker_path": "{path}"}),
    (
        "POST",
        f"{API}/create_sampling_session",
        {"session_id": "{session}", "sampling_session_seq_id": 7, "base_model": EMBEDDED_MODEL},
    ),
    ("POST", f"{API}/join_sampling_session", {"sampling_session_id": "{sampler}"}),
    (
        "POST",
        f"{API}/asample",
        {
            "sampling_session_id": "{sampler}",
            "seq_id": 900,
            "prompt": PROMPT,
            "sampling_params": {"max_tokens": 1},
        },
    ),
    ("GET", f"{API}/samplers/{{sampler}}", None),
    ("POST", f"{API}/retrieve_future", {"request_id": "{future}"}),
    ("POST", f"{API}/retrieve_futures", {"target": TARGET, "timeout": 0.0}),
    ("POST", f"{API}/cancel_future", {"request_id": "{future}"}),
    ("GET", RUN, None),
    ("GET", f"{RUN}/checkpoints", None),
    ("GET", f"{API}/models/{{model}}/checkpoints", None),
    ("PUT", f"{ONE}/ttl", {"ttl_seconds": 9000}),
    ("POST", f"{ONE}/publish", None),
    ("DELETE", f"{ONE}/publish", None),
    ("GET", f"{ONE}/archive", None),
    (
        "GET",
        f"{RUN}/checkpoints/external_weights/kept/external_weights_urls",
        None,
    ),
    ("POST", f"{API}/copy_weights", {"source_path": "{path}", "destination_project_id": "p"}),
    ("GET", f"{API}/sessions/{{session}}", None),
    ("PUT", f"{API}/sessions/{{session}}/project", {"project_id": "p"}),
    ("GET", f"{API}/sessions/{{session}}/trace_export", None),
    ("POST", f"{API}/sessions/{{session}}/finish", {"reason": {"type": "success"}}),
    ("DELETE", ONE, None),
    (
        "POST",
        "/v1/completions",
        {"model": "{sampler_path}", "prompt": "a", "max_tokens": 1},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"model": "{sampler_path}", "messages": [{"role": "user", "content": "a"}]},
    ),
]
# Bodies that name things, but find nothing by them that is not the caller's: tested below.
LISTS = {
    "/api/v1/sessions/search",
    "/api/v1/telemetry",
}
ID_NAMES = {
    *("session_id", "model_id", "run", "sampling_session_id", "sampler_id", "request_id"),
    *("path", "tinker_path", "model_path", "source_path", "target", "model"),
}


def filled(value: Any, ids: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, known in ids.items():
        text = text.replace(f"{{{name}}}", known)
    return json.loads(text)


def ask(http: httpx.Client, call: tuple[str, str, Any], ids: dict[str, str]) -> httpx.Response:
    method, path, body = call
    return http.request(method, filled(path, ids), json=None if body is None else filled(body, ids))


@pytest.mark.parametrize("call", CALLS, ids=[f"{c[0]} {c[1]}" for c in CALLS])
def test_what_is_anothers_is_not_there(ann: Owner, bob: Owner, call: tuple[str, str, Any]) -> None:
    """Another's thing is answered like one that does not exist, word for word."""
    nobody = {name: known.replace(ann.ids["session"], MISSING) for name, known in ann.ids.items()}
    with bob.http() as http:
        foreign, unknown = ask(http, call, ann.ids), ask(http, call, nobody)
    for answer in (foreign, unknown):
        nothing = answer.status_code == 404 or answer.json() == {"cancelled": False}
        assert nothing, answer.text
    assert foreign.text.replace(ann.ids["session"], MISSING) == unknown.text


def test_every_call_that_takes_an_id_is_tested(ann: Owner) -> None:
    with ann.http() as http:
        document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    tested = {(method.lower(), _template(path)) for method, path, _ in CALLS}
    for path, operations in document["paths"].items():
        if path in LISTS or path.startswith(("/oai/", "/download/", "/v1/models")):
            continue  # the same handlers under another prefix; signed links; names of base models
        for method, operation in operations.items():
            names = {parameter["name"] for parameter in operation["parameters"]}
            content = operation.get("requestBody", {}).get("content", {})
            for kind in content.values():
                reference = kind["schema"].get("$ref", "").rpartition("/")[2]
                names |= set(schemas.get(reference, {}).get("properties", {}))
            if names & ID_NAMES:
                assert (method, _template(path)) in tested, f"{method} {path} is not tested"


def _template(path: str) -> str:
    """Paths with their parameters blanked out."""
    parts = path.split("/")
    known = {"weights", "external_weights", "kept"}
    return "/".join("*" if part.startswith("{") or part in known else part for part in parts)


def test_nothing_of_the_owner_was_touched(ann: Owner) -> None:
    """After all that, what ann has is there and works."""
    assert ann.trainer.forward([datum()], "cross_entropy").result().metrics
    assert ann.sampler.sample(prompt(), 1, SAMPLING).result().sequences
    with ann.http() as http:
        for call in CALLS[:1] + [c for c in CALLS if c[0] == "GET" and "urls" not in c[1]]:
            answer = ask(http, call, ann.ids)
            assert answer.status_code in (200, 302), answer.text


def test_waiting_work_is_not_cancelled_by_others(ann: Owner, bob: Owner) -> None:
    early = {"model_id": ann.ids["model"], "seq_id": 500}  # waits for its predecessors
    with ann.http() as hers, bob.http() as his:
        asked = {"request_id": hers.post("/api/v1/optim_step", json=early).json()["request_id"]}
        assert his.post("/api/v1/cancel_future", json=asked).json() == {"cancelled": False}
        assert hers.post("/api/v1/cancel_future", json=asked).json() == {"cancelled": True}


def test_lists_show_ones_own(ann: Owner, bob: Owner) -> None:
    for one, other in ((ann, bob), (bob, ann)):
        rest = one.rest()
        runs = [run.training_run_id for run in rest.list_training_runs().result().training_runs]
        assert one.ids["model"] in runs
        assert other.ids["model"] not in runs
        saved = [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
        assert one.ids["path"] in saved
        assert other.ids["path"] not in saved
        sessions = rest.list_sessions().result().sessions
        assert one.ids["session"] in sessions
        assert other.ids["session"] not in sessions
        with one.http() as http:
            body = {"session_id": other.ids["session"], "owner": {"type": "accessible"}}
            assert http.post("/api/v1/sessions/search", json=body).json()["sessions"] == []
            for path in ("audit", "billing/usage/checkpoints/current"):
                assert other.ids["session"] not in http.get(f"/api/v1/{path}").text


def test_keys_of_one_owner_share_everything(keyed: Keyed, ann: Owner) -> None:
    _, second = keyed.keys.create(f"second-{uuid.uuid4().hex[:8]}", "ann")
    client = tinker.ServiceClient(base_url=keyed.running.url, api_key=second)
    assert client.create_training_client_from_state(ann.ids["path"])


def test_published_checkpoints_can_be_read_by_all(ann: Owner, bob: Owner) -> None:
    path = ann.ids["sampler_path"]
    state = ann.ids["path"]
    with pytest.raises(tinker.NotFoundError):
        bob.client.create_sampling_client(model_path=path)
    for one in (path, state):
        ann.rest().publish_checkpoint_from_tinker_path(one).result()
    sampler = bob.client.create_sampling_client(model_path=path)
    assert sampler.sample(prompt(), 1, SAMPLING).result().sequences
    assert bob.client.create_training_client_from_state(state)
    with pytest.raises(tinker.NotFoundError):
        bob.rest().delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises(tinker.NotFoundError):
        bob.rest().unpublish_checkpoint_from_tinker_path(path).result()
    for one in (path, state):
        ann.rest().unpublish_checkpoint_from_tinker_path(one).result()
    with pytest.raises(tinker.NotFoundError):
        bob.client.create_sampling_client(model_path=path)


def test_models_cannot_be_made_from_anothers_weights(ann: Owner, bob: Owner) -> None:
    with pytest.raises(tinker.NotFoundError):
        bob.client.create_training_client_from_state(ann.ids["path"])
    with pytest.raises(tinker.NotFoundError):
        bob.trainer.load_state(ann.ids["path"]).result()
    assert bob.trainer.forward([datum()], "cross_entropy").result().metrics


# without keys


def test_without_keys_any_key_is_taken(server: Running) -> None:
    for key in ("tml-one", "tml-two"):
        client = tinker.ServiceClient(base_url=server.url, api_key=key)
        assert client.get_server_capabilities().supported_models


def test_pages_of_other_sites_are_kept_out(backend_factory: BackendFactory, tmp_path: Path) -> None:
    from tinsmith.service.access import LOOPBACK

    with serving(
        backend_factory(), tmp_path, make_app=lambda s: create_app(s, hosts=LOOPBACK)
    ) as running:
        url = f"{running.url}/api/v1/healthz"
        for headers in ({}, {"Origin": "http://localhost:3000"}, {"Host": "localhost:80"}):
            assert httpx.get(url, headers=headers).status_code == 200
        for headers in (
            {"Origin": "https://example.org"},
            {"Origin": "null"},
            {"Host": "rebound.example.org"},
            {"Host": "[::"},
        ):
            answer = httpx.get(url, headers=headers)
            assert answer.status_code == 403
            assert "this machine" in answer.json()["detail"]
