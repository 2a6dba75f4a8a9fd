"""Signed links: whoever has one needs no key, and nobody else gets one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tinsmith.service.app import create_app
from tinsmith.service.core import Service
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.routes import checkpoints
from tinsmith.service.store.keys import KeyRing
from tinsmith.service.store.rows import ModelRow

CONTENT = b"x" * 100_000


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(FakeBackend(directory=tmp_path), tmp_path / "service")


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service, KeyRing(service.store))) as client:
        yield client


@pytest.fixture
def keys(service: Service) -> dict[str, dict[str, str]]:
    ring = KeyRing(service.store)
    return {name: {"X-API-Key": ring.create(name, name)[1]} for name in ("ann", "bob")}


@pytest.fixture
def urls(service: Service, http: TestClient, keys: dict[str, dict[str, str]]) -> str:
    """Where the links of a checkpoint of ann's are asked for."""
    session = http.post("/api/v1/create_session", json={}, headers=keys["ann"]).json()["session_id"]
    model = f"{session}:train:0"
    service.store.add_model(ModelRow(model, session, "base", {"rank": 1}, 1.0)).result()
    path = f"tinker://{model}/external_weights/one"
    with service.shelf.writing(path, base_model="base", spec={"rank": 1}) as directory:
        directory.mkdir()
        (directory / "adapter_model.safetensors").write_bytes(CONTENT)
        (directory / "optimizer.safetensors").write_bytes(b"private")
    tail = "checkpoints/external_weights/one/external_weights_urls"
    return f"/api/v1/training_runs/{model}/{tail}"


def test_a_link_works_without_a_key(http, keys, urls):
    links = http.get(urls, headers=keys["ann"]).json()["urls"]
    assert list(links) == ["adapter_model.safetensors"]
    (link,) = links.values()
    assert http.get(link).content == CONTENT
    part = http.get(link, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, CONTENT[5:10])
    for other in ("optimizer.safetensors", "x", "checkpoint"):
        assert http.get(link.replace("adapter_model.safetensors", other)).status_code == 404
    http.headers.update(keys["bob"])  # another's key changes nothing
    assert http.get(link).status_code == 200


def test_only_the_owner_gets_a_link(http, keys, urls):
    assert http.get(urls).status_code == 401
    assert http.get(urls, headers=keys["bob"]).status_code == 404
    http.post(urls.replace("external_weights_urls", "publish"), headers=keys["bob"])
    assert http.get(urls, headers=keys["bob"]).status_code == 404
    http.post(urls.replace("external_weights_urls", "publish"), headers=keys["ann"])
    assert http.get(urls, headers=keys["bob"]).status_code == 200


def test_a_link_ends_with_what_gave_it(http, keys, urls, monkeypatch):
    """After its hour, when the checkpoint is no longer public, and when it is deleted."""
    monkeypatch.setattr(checkpoints, "LINK_SECONDS", -1.0)
    (late,) = http.get(urls, headers=keys["ann"]).json()["urls"].values()
    monkeypatch.undo()
    assert http.get(late).status_code == 404
    publish = urls.replace("external_weights_urls", "publish")
    http.post(publish, headers=keys["ann"])
    (bobs,) = http.get(urls, headers=keys["bob"]).json()["urls"].values()
    (anns,) = http.get(urls, headers=keys["ann"]).json()["urls"].values()
    http.delete(publish, headers=keys["ann"])
    assert [http.get(link).status_code for link in (bobs, anns)] == [404, 200]
    http.delete(urls.removesuffix("/external_weights_urls"), headers=keys["ann"])
    assert http.get(anns).status_code == 404


@pytest.mark.parametrize("token", ["", "a", "a.b", "é.é", "%00.%00", "e30.e30", "." * 5000])
def test_made_up_links_lead_nowhere(http, token):
    assert http.get(f"/download/{token}/adapter_model.safetensors").status_code == 404
