"""Weights: save for training, for sampling or for others to use, load, and what a checkpoint holds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.ops import OpKind
from tinsmith.service.requests import (
    SAVED_AS,
    check_optimizer,
    freeze_of,
    load_of,
    lora_of_checkpoint,
    save_of,
)
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.routes.training import numbered, read_numbered
from tinsmith.service.wire import types


def routes(service: Service) -> list[Route]:
    async def save(request: Request, kind: OpKind) -> Response:
        asked, body = await read_numbered(service, request, types.SaveWeights)
        async with numbered(service, asked.model_id, asked.seq_id) as model:
            work = save_of(asked, model, SAVED_AS[kind])
            future_id = await service.desk.submit(kind, model.id, asked.seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def save_weights(request: Request) -> Response:
        return await save(request, OpKind.SAVE)

    async def save_weights_external(request: Request) -> Response:
        return await save(request, OpKind.SAVE_EXTERNAL)

    async def save_weights_for_sampler(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.SaveWeightsForSampler)
        async with numbered(service, asked.model_id, asked.seq_id) as model:
            if asked.path is None and asked.sampling_session_seq_id is not None:
                work = freeze_of(asked, model)
                future_id = await service.freeze(model, asked.seq_id, work, body)
            else:
                kind = OpKind.SAVE_SAMPLER
                work = save_of(asked, model, SAVED_AS[kind])
                future_id = await service.desk.submit(kind, model.id, asked.seq_id, work, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def load_weights(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.LoadWeights)
        if asked.session_id is not None and asked.model_seq_id is not None:
            return await create_from(asked, asked.session_id, asked.model_seq_id, body)
        if asked.model_id is None or asked.seq_id is None:
            raise RequestError(
                "load_weights needs model_id and seq_id to load into a model, or session_id and "
                "model_seq_id to make one."
            )
        async with numbered(service, asked.model_id, asked.seq_id) as model:
            load = load_of(asked, model.spec, service.shelf)
            future_id = await service.desk.submit(OpKind.LOAD, model.id, asked.seq_id, load, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def create_from(
        asked: types.LoadWeights, session_id: str, number: int, body: bytes
    ) -> Response:
        """A new model that starts from a checkpoint, in one request."""
        check_optimizer(asked.optimizer_config)
        checkpoint, _ = service.shelf.find(asked.path)
        spec = lora_of_checkpoint(checkpoint)
        if asked.base_model is not None and asked.base_model != spec.base_model:
            raise RequestError(
                f"{asked.path} belongs to {spec.base_model}, not to {asked.base_model}; "
                "leave base_model out."
            )
        future_id, model_id = await service.create_model(
            session_id, number, spec, asked.user_metadata or {}, body
        )
        return answer({"request_id": future_id, "model_id": model_id})

    async def weights_info(request: Request) -> Response:
        asked, _ = await read(request, types.WeightsInfo)
        checkpoint, _ = service.shelf.find(asked.tinker_path)
        spec = checkpoint.spec
        return answer(
            {
                "base_model": checkpoint.base_model,
                "is_lora": True,
                "lora_rank": spec["rank"],
                "train_unembed": spec["train_unembed"],
                "train_mlp": spec["train_mlp"],
                "train_attn": spec["train_attn"],
                "optimizer_config": {"type": "adamw"},
            }
        )

    return [
        post(
            "save_weights",
            save_weights,
            takes=types.SaveWeights,
            does="Saves weights and optimizer, to go on from.",
        ),
        post(
            "save_weights_for_sampler",
            save_weights_for_sampler,
            takes=types.SaveWeightsForSampler,
            does="Saves weights to sample from, or copies them for this session.",
        ),
        post(
            "save_weights_external",
            save_weights_external,
            takes=types.SaveWeights,
            does="Saves weights for other programs.",
        ),
        post("load_weights", load_weights, takes=types.LoadWeights, does="Loads a checkpoint."),
        post("weights_info", weights_info, takes=types.WeightsInfo, does="What a checkpoint is."),
    ]
