"""OpenAI-compatible inference over base models and saved weights: completions, chat, models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import ModelError, RequestError, ServiceError, TinsmithError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import ModelInfo
from tinsmith.service.ops import JSON
from tinsmith.service.routes.connection import EventStream, while_connected
from tinsmith.service.routes.http import Handler, answer, read_json, route
from tinsmith.service.routes.meta import served_models
from tinsmith.service.routes.openai_answers import Json, error_body
from tinsmith.service.routes.openai_exchange import Exchange, Target, Wanted
from tinsmith.service.routes.openai_types import (
    DEFAULT_COMPLETION_TOKENS,
    ApiError,
    ChatRequest,
    CompletionRequest,
    R,
    parse_request,
)
from tinsmith.service.tenants import Sampler
from tinsmith.service.text.format import load_format

PREFIXES = ("/v1", "/oai/api/v1")  # OpenAI's, and the hosted service's
EVENTS = EventStream.media_type


def routes(service: Service) -> list[Route]:
    since = int(time.time())

    async def completions(request: Request) -> Response:
        asked = await _read(request, CompletionRequest)
        target = await _target(service, asked.model)
        text = target.format

        def encode() -> tuple[list[tuple[int, ...]], tuple[str, ...] | None]:
            tokens = [text.encode(p) if isinstance(p, str) else tuple(p) for p in asked.prompts]
            if not asked.echo:
                return tokens, None
            return tokens, tuple(p if isinstance(p, str) else text.decode(p) for p in asked.prompts)

        prompts, echo = await asyncio.to_thread(encode)
        wanted = Wanted(
            chat=False,
            max_tokens=DEFAULT_COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens,
            logprobs=asked.logprobs is not None,
            alternatives=asked.logprobs or 0,
            echo=echo,
        )
        exchange = Exchange(service, target, asked, wanted, prompts)
        return await _respond(request, exchange, bool(asked.stream))

    async def chat(request: Request) -> Response:
        asked = await _read(request, ChatRequest)
        target = await _target(service, asked.model)
        add_prompt = asked.add_generation_prompt
        prompt = await asyncio.to_thread(
            target.format.render,
            [message.as_template_input() for message in asked.messages],
            asked.usable_tools,
            asked.chat_template_kwargs,
            add_generation_prompt=not asked.continue_final_message and add_prompt is not False,
            continue_final_message=bool(asked.continue_final_message),
        )
        wanted = Wanted(
            chat=True,
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            logprobs=bool(asked.logprobs),
            alternatives=asked.top_logprobs or 0,
            tools=asked.usable_tools is not None,
        )
        exchange = Exchange(service, target, asked, wanted, [prompt])
        return await _respond(request, exchange, bool(asked.stream))

    async def models(request: Request) -> Response:
        cards = [_card(info.name, info, since) for info in await served_models(service)]
        return answer({"object": "list", "data": cards})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        _, info = await _find(service, name)
        return answer(_card(name, info, since))

    text = {JSON: "The answer.", EVENTS: "Its portions as they come, when `stream` is true."}
    calls: tuple[tuple[str, str, Handler, Json], ...] = (
        (
            "POST",
            "completions",
            completions,
            {"does": "Goes on from a text.", "takes": CompletionRequest, "gives": text},
        ),
        (
            "POST",
            "chat/completions",
            chat,
            {"does": "Answers a conversation.", "takes": ChatRequest, "gives": text},
        ),
        ("GET", "models", models, {"does": "Lists the base models in use."}),
        ("GET", "models/{name:path}", model, {"does": "Says what a model is."}),
    )
    return [
        route(method, path, _in_their_words(handler), prefix=prefix, **about)
        for prefix in PREFIXES
        for method, path, handler, about in calls
    ]


async def _read(request: Request, kind: type[R]) -> R:
    return parse_request(kind, await read_json(request, data=True))


async def _find(service: Service, name: str) -> tuple[Sampler, ModelInfo]:
    try:
        sampler = await service.target(name)
        return sampler, await service.describe(sampler.base_model)
    except (RequestError, ModelError) as error:
        if isinstance(error, RequestError) and error.status not in (400, 404):
            raise
        raise ApiError(
            f"{error} Saved weights are named by their path, "
            "tinker://<model id>/sampler_weights/<name>.",
            param="model",
            code="model_not_found",
            status=404,
        ) from error


async def _target(service: Service, name: str) -> Target:
    sampler, info = await _find(service, name)
    text = await asyncio.to_thread(load_format, info.name, info.directory)
    return Target(sampler, info, text)


def _card(name: str, info: ModelInfo, since: int) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": since,
        "owned_by": "tinsmith",
        "root": info.name,
        "max_model_len": info.max_context,
    }


async def _respond(request: Request, exchange: Exchange, stream: bool) -> Response:
    """The answer; its work ends when the client leaves."""
    if not stream:
        return answer(await while_connected(request.receive, exchange.whole()))
    events = exchange.events()
    # What is refused at the start can still have its status.
    first = await while_connected(request.receive, _first(events))
    return EventStream(first, events)


async def _first(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


def _in_their_words(handler: Handler) -> Handler:
    """Errors in the shape OpenAI's clients read."""

    async def call(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return answer(
                error_body(str(error), error.status, error.param, error.code), error.status
            )
        except TinsmithError as error:
            status = 503 if isinstance(error, ServiceError) else 400
            status = error.status if isinstance(error, RequestError) else status
            return answer(error_body(str(error), status), status)

    return call
