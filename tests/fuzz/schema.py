"""Requests that schemathesis makes from the service's own OpenAPI document, right and wrong ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.generation import GenerationMode

from tests.fuzz.seeds import Request, Things

# More than this asks for an honest hour of work, and the queue would never be empty again.
SMALL = {"num_samples": 2, "max_tokens": 4, "max_completion_tokens": 4, "n": 2, "best_of": 2}


def from_document(
    document: dict[str, Any], things: Things, each: int, rng: random.Random, every: int = 1
) -> Iterator[Request]:
    """About `each` requests for every operation (or every second, third, ...), half of them as described
    and half not."""
    schema = schemathesis.openapi.from_dict(document)
    for found in itertools.islice(schema.get_all_operations(), rng.randrange(every), None, every):
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            yield from _examples(operation, mode, (each + 1) // 2, things, rng)


def _examples(
    operation: Any, mode: GenerationMode, count: int, things: Things, rng: random.Random
) -> list[Request]:
    made: list[Request] = []

    @seed(rng.randrange(2**32))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        made.append(_request(case, things, rng))

    try:
        collect()
    except schemathesis.errors.InvalidSchema:
        raise
    except Exception as error:
        # An operation without parameters and body has nothing that could be wrong about it.
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise
    return made


def _request(case: Any, things: Things, rng: random.Random) -> Request:
    known = things.named()
    ending = case.method == "DELETE" or case.path.endswith(("/finish", "unload_model"))
    if ending:  # what the other requests need must stay
        known = dict.fromkeys(known, "gone")
    for name in case.path_parameters or {}:
        if rng.random() < 0.6 and name in known:
            case.path_parameters[name] = known[name]
    case.body = _with_known(case.body, known, rng)
    prepared = requests.Request(**case.as_transport_kwargs(base_url="http://x")).prepare()
    parts = urlsplit(prepared.url or "")
    body = prepared.body or b""
    keep = ("content-type", "content-encoding", "accept")
    headers = {k.lower(): v for k, v in prepared.headers.items() if k.lower() in keep}
    return Request(
        prepared.method or "GET",
        f"{parts.path}?{parts.query}" if parts.query else parts.path,
        body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
        {k: v.decode("latin-1") if isinstance(v, bytes) else v for k, v in headers.items()},
        "schemathesis",
    )


def _with_known(value: Any, known: dict[str, str], rng: random.Random) -> Any:
    """Ids that exist in place of random ones, mostly; and no more work than a test has time for."""
    if isinstance(value, list):
        return [_with_known(one, known, rng) for one in value]
    if not isinstance(value, dict):
        return value
    made: dict[Any, Any] = {}
    for name, inner in value.items():
        if name in known and isinstance(inner, str) and rng.random() < 0.7:
            made[name] = known[name]
        elif name in SMALL and isinstance(inner, int) and inner > SMALL[name]:
            made[name] = SMALL[name]
        else:
            made[name] = _with_known(inner, known, rng)
    if "prev_cursor" in made or "target" in made:
        made.setdefault("timeout", 0.05)  # a poll that is answered soon
    return made
