"""Writes docs/api_coverage.md: every endpoint that the SDK calls, and what the service does with it.

    python scripts/api_coverage.py

The SDK's endpoints are read from its own source, the service's from its routers. The exit code is 0 only if
no endpoint is missing.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from starlette.routing import BaseRoute, Match, Route

from tinsmith.service.app import create_app
from tinsmith.service.core import Service
from tinsmith.service.engine.fake import FakeBackend

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api_coverage.md"
PREFIX = "/api/v1/"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# What the SDK calls its variables in paths, and what they stand for.
PLACES = {
    "training_run_id": "run",
    "model_id": "run",
    "checkpoint_id": "kind}/{name",
    "session_id": "session",
    "sampler_id": "sampler",
    "self._sampling_session_id": "sampler",
}
# Endpoints of older SDKs, which the installed one has left, and the versions that call them.
OLD = {
    ("POST", "forward"): "up to 0.24",
    ("POST", "unload_model"): "up to 0.25",
    ("GET", "training_runs/{run}/checkpoints/{kind}/{name}/archive"): "up to 0.35",
    ("GET", "models/{run}/checkpoints"): "up to 0.3",
    ("POST", "sample"): "up to 0.2",
    ("POST", "auth/apikey"): "0.26 to 0.28",
}


class Endpoint(NamedTuple):
    path: str  # below the prefix
    method: str
    called_by: str


def main() -> int:
    endpoints = [*sdk_endpoints(), *old_endpoints()]
    routes = service_routes()
    PAGE.write_text(page(endpoints, routes))
    missing = [one for one in endpoints if served(one, routes) is None]
    for one in missing:
        print(f"missing: {one.method} {PREFIX}{one.path} ({one.called_by})")
    print(f"{len(endpoints) - len(missing)} of {len(endpoints)} endpoints; {PAGE} is written")
    return 1 if missing else 0


# ── the SDK's ────────────────────────────────────────────────────────────────────────────────


def sdk_endpoints() -> list[Endpoint]:
    """What the installed SDK can send, by path."""
    spec = importlib.util.find_spec("tinker")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    found: dict[tuple[str, str], set[str]] = {}
    for file in sorted(package.rglob("*.py")):
        if file.stem.endswith("_test"):
            continue
        for method, path in calls(ast.parse(file.read_text())):
            found.setdefault((path, method), set()).add(file.stem)
    return [
        Endpoint(path, method, ", ".join(sorted(files)))
        for (path, method), files in sorted(found.items())
    ]


def calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Method and path of every call that names a path of the API."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        paths = [path for path in map(literal, node.args) if path and path.startswith(PREFIX)]
        if not paths:
            continue
        verb = node.func.attr.strip("_").upper()
        method = verb if verb in METHODS else literal(node.args[0])
        assert method in METHODS, f"{ast.unparse(node)[:120]} has no method that is known"
        yield method, paths[0].removeprefix(PREFIX)


def literal(node: ast.expr) -> str | None:
    """A string as it is written; what is filled in at run time stands in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            name = ast.unparse(part.value)
            parts.append("{" + PLACES.get(name, name) + "}")
        else:
            parts.append(literal(part) or "")
    return "".join(parts)


def old_endpoints() -> list[Endpoint]:
    return [Endpoint(path, method, versions) for (method, path), versions in OLD.items()]


# ── the service's ────────────────────────────────────────────────────────────────────────────


def service_routes() -> list[BaseRoute]:
    with tempfile.TemporaryDirectory() as directory:
        service = Service(FakeBackend(), Path(directory), token="")
        return list(create_app(service).routes)


def served(endpoint: Endpoint, routes: Iterable[BaseRoute]) -> str | None:
    """What the service says that the route does, empty if it says nothing; None without a route."""
    path = PREFIX + re.sub(r"\{(\w+)\}", r"\1", endpoint.path)
    scope = {"type": "http", "method": endpoint.method, "path": path, "root_path": ""}
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] == Match.FULL:
            about = getattr(route, "about", None)
            return about.does if about is not None else ""
    return None


def page(endpoints: list[Endpoint], routes: list[BaseRoute]) -> str:
    version = importlib.metadata.version("tinker")
    answers = [(one, served(one, routes)) for one in endpoints]
    signs = [sign(does) for _, does in answers]
    rows = [
        f"| {one.method} | `{one.path}` | {one.called_by} | {sign(does)} | {does or ''} |"
        for one, does in answers
    ]
    return "\n".join(
        [
            "# Coverage of the API",
            "",
            f"The endpoints (below `{PREFIX}`) that the `tinker` SDK {version} calls, read from its source, and those of older",
            f"versions: {len(signs)}, of which {signs.count('✓')} are done, {signs.count('✗')} refused and {signs.count('–')} missing. `make api-coverage`",
            "writes this page; a test keeps it true.",
            "",
            "✓ done · ✗ refused, with a sentence that says what to do instead · – missing",
            "",
            "| | endpoint | called by | | |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def sign(does: str | None) -> str:
    if does is None:
        return "–"
    return "✗" if does.startswith("Refused") else "✓"


if __name__ == "__main__":
    sys.exit(main())
