"""The page of endpoints is true, and the service has all that the installed SDK calls."""

from __future__ import annotations

import ast

from scripts import api_coverage


def test_no_endpoint_is_missing() -> None:
    routes = api_coverage.service_routes()
    endpoints = [*api_coverage.sdk_endpoints(), *api_coverage.old_endpoints()]
    assert [one for one in endpoints if api_coverage.served(one, routes) is None] == []


def test_the_page_is_up_to_date() -> None:
    endpoints = [*api_coverage.sdk_endpoints(), *api_coverage.old_endpoints()]
    written = api_coverage.page(endpoints, api_coverage.service_routes())
    assert api_coverage.PAGE.read_text() == written, "run `make api-coverage`"


def test_an_unknown_endpoint_is_seen_to_be_missing() -> None:
    routes = api_coverage.service_routes()
    for method, path in (("POST", "nowhere"), ("DELETE", "optim_step")):
        assert api_coverage.served(api_coverage.Endpoint(path, method, ""), routes) is None


def test_calls_are_found_however_they_are_written() -> None:
    source = """
client.get("/api/v1/one", timeout=3)
self._post(f"/api/v1/training_runs/{model_id}/x/{checkpoint_id}", body=b)
self._request("DELETE", "/api/v1/three", headers={})
print("see /api/v1/four")
"""
    assert list(api_coverage.calls(ast.parse(source))) == [
        ("GET", "one"),
        ("POST", "training_runs/{run}/x/{kind}/{name}"),
        ("DELETE", "three"),
    ]


def test_what_is_known_to_be_called_is_found() -> None:
    found = {(one.method, one.path) for one in api_coverage.sdk_endpoints()}
    assert {
        ("POST", "asample"),
        ("PUT", "training_runs/{run}/checkpoints/{kind}/{name}/ttl"),
        ("GET", "samplers/{sampler}"),
        ("POST", "cancel_future"),
        ("DELETE", "auth/apikey/me"),
    } <= found
    assert len(found) >= 46
