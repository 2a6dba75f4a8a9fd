"""Every call of RestClient and AdminClient, with the unmodified SDK over HTTP."""

from __future__ import annotations

import io
import json
import tarfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx
import peft
import pytest
import tinker
import torch
import transformers
from tinker import types

from tests.contract.conftest import BackendFactory, Running, serving
from tests.contract.data import TOKENS, datum
from tinsmith.service.engine.torch_backend import TorchBackend
from tinsmith.service.store.rows import SessionRow
from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def backend_factory() -> BackendFactory:
    return lambda: TorchBackend(device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[tinker.ServiceClient]:
    client = tinker.ServiceClient(
        base_url=server.url,
        api_key=LOCAL_API_KEY,
        user_metadata={"team": "red"},
        project_id="proj-a",
        display_name="Nightly Arithmetic",
    )
    yield client
    client.close("success").result()


@pytest.fixture(scope="module")
def trainer(client: tinker.ServiceClient) -> tinker.TrainingClient:
    trainer = client.create_lora_training_client(
        EMBEDDED_MODEL, rank=8, seed=1, user_metadata={"renderer_name": "role_colon"}
    )
    for _ in range(3):
        trainer.forward_backward([datum()], "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=0.02)).result()
    return trainer


@pytest.fixture(scope="module")
def paths(trainer: tinker.TrainingClient) -> dict[str, str]:
    return {
        "weights": trainer.save_state("one").result().path,
        "sampler_weights": trainer.save_weights_for_sampler("one").result().path,
        "external_weights": trainer.save_weights_external("one").result().path,
    }


@pytest.fixture(scope="module")
def rest(server: Running, paths: dict[str, str]) -> tinker.RestClient:
    """Without a session, as the command line uses it; after something was saved."""
    return tinker.RestClient(base_url=server.url, api_key=LOCAL_API_KEY)


@pytest.fixture(scope="module")
def admin(server: Running) -> tinker.AdminClient:
    return tinker.AdminClient(base_url=server.url, api_key=LOCAL_API_KEY)


@pytest.fixture(scope="module")
def session_id(trainer: tinker.TrainingClient) -> str:
    return trainer.model_id.partition(":")[0]


@pytest.fixture
def foreign(server: Running) -> str:
    """A saved checkpoint of another owner's."""
    store = server.service.store
    name = f"other{len(store.rows('SELECT id FROM sessions'))}"
    store.add_session(SessionRow(name, 1.0, 1.0, owner="somebody")).result()
    with server.service.shelf.writing(
        f"tinker://{name}:train:0/weights/theirs", base_model=EMBEDDED_MODEL, spec={"rank": 4}
    ) as directory:
        directory.mkdir()
        (directory / "adapter_config.json").write_text("{}")
    store.write(
        "INSERT INTO models (id, session_id, base_model, spec, user_metadata, created_at)"
        " VALUES (?, ?, ?, ?, '{}', 1.0)",
        (f"{name}:train:0", name, EMBEDDED_MODEL, '{"rank": 4}'),
    ).result()
    return f"tinker://{name}:train:0/weights/theirs"


def logprobs_of(trainer: tinker.TrainingClient) -> torch.Tensor:
    out = trainer.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    return torch.tensor(out.data)


# training runs


def test_training_runs(rest, trainer, paths):
    newest = trainer.save_state("newest", overwrite=True).result().path
    sampled = trainer.save_weights_for_sampler("newest").result().path
    run = rest.get_training_run(trainer.model_id).result()
    assert (run.base_model, run.is_lora, run.lora_rank) == (EMBEDDED_MODEL, True, 8)
    assert run.user_metadata == {"renderer_name": "role_colon"}
    assert run.last_checkpoint.tinker_path == newest
    assert run.last_sampler_checkpoint.tinker_path == sampled
    assert abs(datetime.now(UTC) - run.last_request_time) < timedelta(minutes=5)
    assert rest.get_training_run_by_tinker_path(paths["weights"]).result() == run
    listed = rest.list_training_runs().result()
    assert run in listed.training_runs
    assert listed.cursor.total_count >= 1


def test_training_runs_come_in_pages_and_by_project(rest, client, trainer):
    more = [client.create_lora_training_client(EMBEDDED_MODEL, rank=2).model_id for _ in range(2)]
    whole = [run.training_run_id for run in rest.list_training_runs().result().training_runs]
    assert whole[:2] == more[::-1]
    pages = [rest.list_training_runs(limit=1, offset=n).result() for n in range(len(whole))]
    assert [page.training_runs[0].training_run_id for page in pages] == whole
    assert {page.cursor.total_count for page in pages} == {len(whole)}
    inside = rest.list_training_runs(project_id="proj-a").result().training_runs
    assert trainer.model_id in [run.training_run_id for run in inside]
    assert rest.list_training_runs(project_id="proj-b").result().training_runs == []


def test_unknown_runs_are_not_found(rest):
    with pytest.raises(tinker.NotFoundError, match="there is no training run"):
        rest.get_training_run("nobody:train:0").result()
    with pytest.raises(tinker.NotFoundError):
        rest.list_checkpoints("nobody:train:0").result()


# checkpoints


def test_checkpoints_of_a_run_and_of_all(rest, trainer, paths):
    of_run = rest.list_checkpoints(trainer.model_id).result().checkpoints
    found = {one.tinker_path: one for one in of_run}
    assert set(paths.values()) <= set(found)
    kinds = {found[path].checkpoint_type for path in paths.values()}
    assert kinds == {"training", "sampler", "external"}
    one = found[paths["weights"]]
    assert (one.checkpoint_id, one.public, one.expires_at) == ("weights/one", False, None)
    assert one.size_bytes > 1000
    everything = rest.list_user_checkpoints(limit=2).result()
    assert len(everything.checkpoints) == 2
    assert everything.cursor.total_count >= 3
    times = [c.time for c in rest.list_user_checkpoints().result().checkpoints]
    assert times == sorted(times, reverse=True)


def test_old_sdks_hear_only_of_types_they_know(server, trainer, paths):
    def listed(agent: str) -> set[str]:
        path = f"{server.url}/api/v1/training_runs/{trainer.model_id}/checkpoints"
        rows = httpx.get(path, headers={"user-agent": agent}).json()["checkpoints"]
        return {row["checkpoint_type"] for row in rows}

    assert listed("AsyncTinker/Python 0.25.0") == {"training", "sampler"}
    assert listed("AsyncTinker/Python 0.36.0") == {"training", "sampler", "external"}


def test_weights_info_of_every_kind(rest, paths):
    for path in paths.values():
        info = rest.get_weights_info_by_tinker_path(path).result()
        assert (info.base_model, info.lora_rank, info.is_lora) == (EMBEDDED_MODEL, 8, True)


def test_publish_twice_and_take_back_twice(rest, trainer, paths):
    def public() -> bool:
        listed = rest.list_checkpoints(trainer.model_id).result().checkpoints
        return next(one.public for one in listed if one.tinker_path == paths["weights"])

    for call, expected in (
        (rest.publish_checkpoint_from_tinker_path, True),
        (rest.unpublish_checkpoint_from_tinker_path, False),
    ):
        for _ in range(2):
            call(paths["weights"]).result()
            assert public() is expected


def test_ttl(rest, trainer):
    path = trainer.save_state("brief", ttl_seconds=7200).result().path

    def expires() -> datetime | None:
        listed = rest.list_checkpoints(trainer.model_id).result().checkpoints
        return next(one.expires_at for one in listed if one.tinker_path == path)

    before = expires()
    assert before is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, 86400).result()
    after = expires()
    assert after is not None
    assert after - before > timedelta(hours=20)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert expires() is None
    with pytest.raises(tinker.UnprocessableEntityError, match="ttl_seconds"):
        rest.set_checkpoint_ttl_from_tinker_path(path, -1).result()


def test_expired_checkpoints_are_gone_with_their_files(server, rest, trainer):
    path = trainer.save_state("short", ttl_seconds=3600).result().path
    directory = server.service.shelf.find(path)[1]
    at = datetime.now(UTC).timestamp()
    assert server.service.catalog.remove_expired(at) == 0
    assert directory.is_dir()
    assert server.service.catalog.remove_expired(at + 4000) >= 1
    assert not directory.exists()
    listed = rest.list_checkpoints(trainer.model_id).result().checkpoints
    assert path not in [one.tinker_path for one in listed]


def test_a_deleted_checkpoint_is_gone_but_its_sampler_goes_on(server, rest, client, trainer):
    path = trainer.save_weights_for_sampler("doomed").result().path
    directory = server.service.shelf.find(path)[1]
    sampler = client.create_sampling_client(path)
    before = sampler.compute_logprobs(tinker.ModelInput.from_ints(TOKENS)).result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert not directory.exists()
    assert sampler.compute_logprobs(tinker.ModelInput.from_ints(TOKENS)).result() == before
    for call in (rest.delete_checkpoint_from_tinker_path, rest.get_weights_info_by_tinker_path):
        with pytest.raises(tinker.NotFoundError, match="there is no checkpoint"):
            call(path).result()
    trainer.save_weights_for_sampler("doomed").result()  # the name is free again
    rest.delete_checkpoint(trainer.model_id, "sampler_weights/doomed").result()


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2Fb", "a%00b", ".incoming-1", "x" * 200])
def test_names_that_are_no_names(server, trainer, paths, name):
    for method, tail in (("DELETE", ""), ("POST", "/publish"), ("GET", "/archive")):
        url = (
            f"{server.url}/api/v1/training_runs/{trainer.model_id}/checkpoints/weights/{name}{tail}"
        )
        assert httpx.request(method, url).status_code in (400, 404, 405)
    assert server.service.shelf.find(paths["weights"])[1].is_dir()


def test_copies_share_nothing_but_bytes(server, rest, client, trainer, paths):
    copy = rest.copy_weights(paths["weights"], "proj-archive", ttl_seconds=7200).result()
    assert copy != paths["weights"]
    assert copy.endswith("/weights/one")
    run = rest.get_training_run_by_tinker_path(copy).result()
    assert run.user_metadata == {"copied_from": paths["weights"]}
    listed = rest.list_training_runs(project_id="proj-archive").result().training_runs
    assert [one.training_run_id for one in listed] == [run.training_run_id]
    rest.delete_checkpoint_from_tinker_path(copy).result()
    assert server.service.shelf.find(paths["weights"])[1].is_dir()
    again = client.copy_weights(paths["sampler_weights"]).result()  # into the client's own project
    rest.publish_checkpoint_from_tinker_path(again).result()
    sampler = client.create_sampling_client(again)
    assert sampler.compute_logprobs(tinker.ModelInput.from_ints(TOKENS)).result()


def test_the_same_copy_again_is_the_same(server, paths):
    body = {"source_path": paths["weights"], "destination_project_id": "p"}
    url, headers = f"{server.url}/api/v1/copy_weights", {"X-Idempotency-Key": "k"}
    first, again = (httpx.post(url, json=body, headers=headers).json() for _ in range(2))
    assert first == again
    nowhere = httpx.post(url, json={"source_path": paths["weights"]})
    assert (nowhere.status_code, "destination_project_id" in nowhere.text) == (400, True)


def test_a_copy_can_be_put_into_a_session(server, session_id, paths):
    body = {"source_path": paths["weights"], "session_id": session_id, "model_seq_id": 77}
    url = f"{server.url}/api/v1/copy_weights"
    path = httpx.post(url, json=body).json()["tinker_path"]
    assert path == f"tinker://{session_id}:train:77/weights/one"
    assert httpx.post(url, json=body).json()["tinker_path"] == path
    taken = httpx.post(url, json={**body, "model_seq_id": 0})
    assert (taken.status_code, "is there already" in taken.text) == (400, True)


# owners


def test_what_belongs_to_others_is_not_there(rest, foreign):
    run = foreign.removeprefix("tinker://").partition("/")[0]
    for call in (
        lambda: rest.get_training_run(run),
        lambda: rest.get_training_run(run, access_scope="accessible"),
        lambda: rest.list_checkpoints(run),
        lambda: rest.delete_checkpoint_from_tinker_path(foreign),
        lambda: rest.publish_checkpoint_from_tinker_path(foreign),
        lambda: rest.set_checkpoint_ttl_from_tinker_path(foreign, 3600),
        lambda: rest.copy_weights(foreign, "p"),
        lambda: rest.get_session(run.partition(":")[0]),
        lambda: rest.assign_session_project(run.partition(":")[0], "p"),
        lambda: rest.export_session_trace(run.partition(":")[0]),
    ):
        with pytest.raises(tinker.NotFoundError):
            call().result()
    mine = rest.list_training_runs(limit=1000, access_scope="accessible").result()
    assert run not in [one.training_run_id for one in mine.training_runs]
    assert foreign not in [
        one.tinker_path for one in rest.list_user_checkpoints(1000).result().checkpoints
    ]
    assert run.partition(":")[0] not in rest.list_sessions(1000).result().sessions


def test_what_others_made_public_can_be_read_and_not_changed(server, rest, foreign):
    server.service.catalog.publish(foreign, "somebody", True).result()
    run = foreign.removeprefix("tinker://").partition("/")[0]
    seen = rest.get_training_run(run, access_scope="accessible").result()
    assert (seen.model_owner, seen.last_checkpoint.tinker_path) == ("somebody", foreign)
    assert [c.tinker_path for c in rest.list_checkpoints(run).result().checkpoints] == [foreign]
    assert rest.copy_weights(foreign, "p").result().endswith("/weights/theirs")
    for call in (
        rest.get_training_run_by_tinker_path,
        rest.delete_checkpoint_from_tinker_path,
        rest.unpublish_checkpoint_from_tinker_path,
    ):
        with pytest.raises(tinker.NotFoundError):
            call(foreign).result()


# files


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


def test_external_weights_load_in_peft_with_the_services_logprobs(
    server, rest, trainer, paths, tmp_path
):
    answer = rest.get_external_weights_urls(paths["external_weights"]).result()
    assert set(answer.urls) == {"adapter_config.json", "adapter_model.safetensors"}
    assert answer.expires - datetime.now(UTC) > timedelta(minutes=50)
    for name, url in answer.urls.items():
        assert url.startswith(f"{server.url}/download/")
        (tmp_path / name).write_bytes(fetch(url))
    base = transformers.AutoModelForCausalLM.from_pretrained(
        server.backend.describe(EMBEDDED_MODEL).directory, dtype=torch.float32
    )
    tokens = torch.tensor(TOKENS)

    def logprobs(model: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            scores = model(tokens[None, :-1]).logits[0].log_softmax(-1)
        return scores[range(len(tokens) - 1), tokens[1:]]

    plain = logprobs(base)
    expected = logprobs_of(trainer)
    adapted = logprobs(peft.PeftModel.from_pretrained(base, tmp_path))
    torch.testing.assert_close(adapted, expected, atol=1e-4, rtol=0)
    assert (plain - expected).abs().max() > 0.01


def test_only_external_weights_have_urls(server, rest, paths):
    with pytest.raises(ValueError, match="only accepts external weights"):
        rest.get_external_weights_urls(paths["weights"])
    path = paths["weights"].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    url = f"{server.url}/api/v1/training_runs/{path}/external_weights_urls"
    assert httpx.get(url).status_code == 400


def test_links_cannot_be_changed_or_reach_elsewhere(rest, paths):
    url = rest.get_external_weights_urls(paths["external_weights"]).result().urls
    base, _, file = url["adapter_config.json"].rpartition("/")
    assert json.loads(fetch(f"{base}/{file}"))["r"] == 8
    for name in ("tinsmith.json", "..%2f..%2fservice.sqlite", "optimizer.safetensors", "nothing"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{base}/{name}")
    for changed in (base[:-1], base[:-4] + "AAAA", base.replace("/download/", "/download/A"), ""):
        with pytest.raises((urllib.error.HTTPError, ValueError), match=r"404|unknown url"):
            fetch(f"{changed}/{file}")


def test_a_link_is_of_one_save_only(server, rest, trainer):
    path = trainer.save_weights_external("again").result().path
    url = rest.get_external_weights_urls(path).result().urls["adapter_config.json"]
    rest.delete_checkpoint_from_tinker_path(path).result()
    trainer.save_weights_external("again").result()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(url)


def test_a_host_that_is_none_is_not_believed(server, trainer, paths):
    path = paths["external_weights"].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    url = f"{server.url}/api/v1/training_runs/{path}/external_weights_urls"
    for host, expected in (
        ("box.lan:8000", "http://box.lan:8000/download/"),
        ("evil/x", f"{server.url}/download/"),
        ("user@evil", f"{server.url}/download/"),
    ):
        urls = httpx.get(url, headers={"Host": host}).json()["urls"]
        assert all(one.startswith(expected) for one in urls.values())


@pytest.mark.parametrize("kind", ["weights", "sampler_weights"])
def test_archives_for_older_sdks(server, paths, kind):
    path = paths[kind].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    redirect = httpx.get(f"{server.url}/api/v1/training_runs/{path}/archive")
    assert redirect.status_code == 302
    expires = datetime.strptime(redirect.headers["Expires"], "%a, %d %b %Y %H:%M:%S GMT")
    assert expires.replace(tzinfo=UTC) > datetime.now(UTC)
    with tarfile.open(fileobj=io.BytesIO(fetch(redirect.headers["Location"]))) as tar:
        names = set(tar.getnames())
        stored = tar.extractfile("adapter_model.safetensors").read()
    assert names == {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"}
    directory = server.service.shelf.find(paths[kind])[1]
    assert stored == (directory / "adapter_model.safetensors").read_bytes()


def test_encrypted_weights(rest, trainer):
    """Where pyrage is installed they are encrypted; where it is not, they are refused in words."""
    try:
        import pyrage
    except ModuleNotFoundError:
        with pytest.raises(tinker.RequestFailedError, match="pip install pyrage"):
            trainer.save_weights_external("secret", age_encryption_recipients=["age1x"]).result()
        return
    identity = pyrage.x25519.Identity.generate()
    key = str(identity.to_public())
    path = trainer.save_weights_external("secret", age_encryption_recipients=[key]).result().path
    urls = rest.get_external_weights_urls(path).result().urls
    assert set(urls) == {"adapter_config.json.age", "adapter_model.safetensors.age"}
    config = pyrage.decrypt(fetch(urls["adapter_config.json.age"]), [identity])
    assert json.loads(config)["r"] == 8
    with pytest.raises(tinker.RequestFailedError, match="is not an age recipient"):
        trainer.save_weights_external("bad", age_encryption_recipients=["age1x"]).result()


# sessions


def test_sessions(rest, trainer, session_id):
    assert session_id in rest.list_sessions().result().sessions
    session = rest.get_session(session_id).result()
    assert trainer.model_id in session.training_run_ids
    assert session.user_metadata == {"team": "red"}
    assert session.display_name == "Nightly Arithmetic"
    sampler = trainer.save_weights_and_get_sampling_client()
    assert sampler._sampling_session_id in rest.get_session(session_id).result().sampler_ids
    assert rest.get_sampler(sampler._sampling_session_id).result().base_model


def search(rest: tinker.RestClient, **query: object) -> types.SessionSearchResponse:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rest.search_sessions(types.SessionSearchRequest(**query)).result()


def test_session_search(server, rest, session_id):
    done = server.client()
    done.create_lora_training_client(EMBEDDED_MODEL, rank=2)
    done.close("errored").result()

    def ids(**query: object) -> list[str]:
        return [one.session_id for one in search(rest, **query).sessions]

    (found,) = search(rest, session_id=session_id).sessions
    assert (found.project_id, found.owner, found.status.type) == ("proj-a", "local", "active")
    assert found.checkpoints_count >= 3
    assert found.checkpoint_storage_bytes > 1000
    assert ids(display_name="arith night") == [session_id]
    assert ids(display_name="weekly") == []
    assert ids(user_metadata={"team": "red"}) == [session_id]
    assert ids(user_metadata={"team": "blue"}) == []
    assert session_id in ids(project_ids=["proj-a"])
    assert session_id in ids(owner=types.AccessibleSearchOwner())
    assert ids(owner=types.UserSearchOwner(owner_urns=["somebody"])) == []
    finished = types.ClientFinishedSessionStatusQuery(reasons=["errored"])
    (ended,) = search(rest, statuses=[finished], limit=1).sessions
    assert ended.status.reason.type == "errored"
    active = types.ActiveSessionStatusQuery()
    assert session_id in ids(statuses=[active])
    assert ended.session_id not in ids(statuses=[active])
    assert set(ids(statuses=[active, finished])) >= {session_id, ended.session_id}


def test_session_search_in_pages(server, rest):
    for _ in range(3):
        httpx.post(f"{server.url}/api/v1/create_session", json={"tags": []}).raise_for_status()
    whole = [one.session_id for one in search(rest).sessions]
    assert len(whole) > 2
    seen, cursor = [], None
    while True:
        page = search(rest, limit=1, cursor=cursor)
        seen += [one.session_id for one in page.sessions]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == whole


def test_a_session_moves_to_a_project(server, rest):
    client = server.client()
    model = client.create_lora_training_client(EMBEDDED_MODEL, rank=2).model_id
    rest.assign_session_project(model.partition(":")[0], "proj-moved").result()
    runs = rest.list_training_runs(project_id="proj-moved").result().training_runs
    assert [run.training_run_id for run in runs] == [model]
    client.close("success").result()


def test_a_trace_shows_the_requests(rest, trainer, session_id):
    trace = json.loads(fetch(rest.export_session_trace(session_id).result()))
    begun = [event for event in trace["traceEvents"] if event["ph"] == "b"]
    ended = {event["id"]: event for event in trace["traceEvents"] if event["ph"] == "e"}
    steps = [event for event in begun if event["name"] == "optim_step"]
    assert len(steps) >= 3
    assert all(ended[step["id"]]["ts"] >= step["ts"] for step in steps)
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {names[step["pid"]] for step in steps} == {trainer.model_id}


# books


def test_audit(rest, admin, trainer, paths):
    rest.publish_checkpoint_from_tinker_path(paths["sampler_weights"]).result()
    entries = admin.get_audit_log("checkpoints").result().entries
    published = [one for one in entries if one.event == "checkpoint_publish"]
    assert published[-1].tinker_path == paths["sampler_weights"]
    assert published[-1].model_id == trainer.model_id
    assert published[-1].event_details == {"actor": "local", "subject": paths["sampler_weights"]}
    assert admin.get_audit_log("teams").result().entries == []
    assert admin.get_audit_log(day=date(2020, 1, 1)).result().entries == []
    assert rest.get_audit_log().result().entries


def test_usage(rest, admin, paths):
    found = admin.get_current_checkpoint_storage_usage("proj-a").result().data
    assert len(found) == 1
    listed = rest.list_user_checkpoints(1000).result().checkpoints
    own = [one for one in listed if one.tinker_path in paths.values()]
    assert found[0].checkpoint_count >= 3
    assert found[0].size_bytes >= sum(one.size_bytes for one in own)
    assert rest.get_current_checkpoint_storage_usage().result().data
    day = admin.get_billing_usage("2026-07-13T00:00:00Z", "2026-07-14T00:00:00Z").result()
    assert (day.data, day.sessions) == ([], {})
    with pytest.raises(tinker.BadRequestError, match="14 days"):
        admin.get_billing_usage("2026-07-13T00:00:00Z", "2026-08-14T00:00:00Z").result()


# old calls, and what is refused


def test_old_calls(server, trainer, paths):
    base = f"{server.url}/api/v1"
    listed = httpx.get(f"{base}/models/{trainer.model_id}/checkpoints").json()
    assert listed["checkpoints"]
    for name in ("sample", "create_custom_loss"):
        refused = httpx.post(f"{base}/{name}", json={})
        assert refused.status_code == 400
        assert "use " in refused.json()["detail"]


def test_unload_model(server):
    client = server.client()
    model = client.create_lora_training_client(EMBEDDED_MODEL, rank=2).model_id
    base = f"{server.url}/api/v1"
    future = httpx.post(f"{base}/unload_model", json={"model_id": model}).json()
    result = httpx.post(
        f"{base}/retrieve_future", json={"request_id": future["request_id"]}, timeout=40
    )
    assert result.json() == {"model_id": model, "type": "unload_model"}
    assert httpx.post(f"{base}/get_info", json={"model_id": model}).status_code == 404


@pytest.mark.parametrize(
    "query",
    ["limit=-1", "limit=x", "offset=99999999999999999999", "access_scope=all"],
)
def test_odd_queries_are_refused(server, query):
    found = httpx.get(f"{server.url}/api/v1/training_runs?{query}")
    assert found.status_code == 422
    assert query.partition("=")[0] in found.json()["detail"]


def test_a_restart_keeps_it_all(backend_factory: BackendFactory, tmp_path: Path):
    with serving(backend_factory(), tmp_path) as running:
        client = running.client()
        trainer = client.create_lora_training_client(EMBEDDED_MODEL, rank=2)
        path = trainer.save_state("kept").result().path
        client.close("success").result()
        model = trainer.model_id
    with serving(backend_factory(), tmp_path) as running:
        rest = tinker.RestClient(base_url=running.url, api_key=LOCAL_API_KEY)
        assert rest.get_training_run(model).result().last_checkpoint.tinker_path == path
        rest.delete_checkpoint_from_tinker_path(path).result()
