"""The OpenAPI document, made from the routes themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import tinsmith
from tinsmith.service.ops import JSON, PROTOBUF
from tinsmith.service.routes.http import About, ApiRoute, answer, route

Json: TypeAlias = dict[str, Any]

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFERENCE = "#/components/schemas/{model}"
# Every route can be refused in these ways; what a sentence says is in `detail`.
_ERRORS = {
    "400": "It cannot be done as asked.",
    "401": "A key is needed, or this one is unknown.",
    "403": "Not for this caller.",
    "404": "There is no such thing, or it is another owner's.",
    "405": "Not with this method.",
    "408": "Not yet; ask again.",
    "409": "It is so already.",
    "410": "It is over.",
    "413": "Too large.",
    "415": "Not in this form.",
    "422": "Malformed.",
    "429": "Too much at once; ask again after `retry-after` seconds.",
    "431": "Too many headers.",
}


def routes(others: Iterable[BaseRoute]) -> list[Route]:
    """Describes the routes it is given, and itself."""
    described = [one for one in others if isinstance(one, ApiRoute)]

    async def openapi(request: Request) -> Response:
        return answer(document(described))

    own = route("GET", "openapi.json", openapi, prefix="", does="This document.")
    described.append(own)
    return [own]


def document(described: Iterable[ApiRoute]) -> Json:
    described = list(described)
    taken = sorted({r.about.takes for r in described if r.about.takes}, key=lambda m: m.__name__)
    references, schemas = _schemas(taken)
    paths: dict[str, Json] = {}
    for one in described:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tinsmith",
            "version": tinsmith.__version__,
            "description": "The Tinker API on your own machine.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": _refusals(),
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"key": []}, {"bearer": []}],
    }


def _schemas(models: list[type[BaseModel]]) -> tuple[dict[type[BaseModel], Json], Json]:
    """Where each model's schema is, and all schemas."""
    pairs = [(model, "validation") for model in models]
    found, definitions = models_json_schema(
        pairs,  # pyright: ignore[reportArgumentType] - the literal is widened in the list
        ref_template=_REFERENCE,
        schema_generator=GenerateJsonSchema,
    )
    schemas = definitions.get("$defs", {})
    schemas["Error"] = {
        "type": "object",
        "properties": {"detail": {"type": "string"}},
    }
    return {model: schema for (model, _), schema in found.items()}, schemas  # pyright: ignore


def _operation(one: ApiRoute, references: dict[type[BaseModel], Json]) -> Json:
    about = one.about
    operation: Json = {
        "operationId": f"{one.method.lower()} {one.path}",
        "summary": about.does,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(one.path)
        ],
        "responses": _responses(about),
    }
    for query in about.query:
        schema: Json = {"type": query.type}
        if query.one_of:
            schema["enum"] = list(query.one_of)
        operation["parameters"].append({"name": query.name, "in": "query", "schema": schema})
    content: Json = {}
    if about.takes is not None:
        content[JSON] = {"schema": references[about.takes]}
    if about.proto:
        content[PROTOBUF] = {"schema": {"type": "string", "format": "binary"}}
    if content:
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(about: About) -> Json:
    gives = about.gives or {JSON: "The answer."}
    content = {
        kind: {"schema": {"type": "object"} if kind == JSON else {"type": "string"}}
        for kind in gives
    }
    responses: Json = {"200": {"description": " ".join(gives.values()), "content": content}}
    for status in _ERRORS:
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _refusals() -> Json:
    content = {JSON: {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    return {
        status: {"description": meaning, "content": content} for status, meaning in _ERRORS.items()
    }
