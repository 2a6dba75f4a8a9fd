"""Weights: save for training or sampling, load, and what a checkpoint holds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.ops import Load, OpKind, Save
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.routes.training import numbered, read_numbered
from tinsmith.service.store.checkpoints import Kind, TinkerPath, check_name
from tinsmith.service.store.rows import Checkpoint
from tinsmith.service.tenants import Model, spec_fields
from tinsmith.service.wire import types


def _check_fits(checkpoint: Checkpoint, model: Model) -> None:
    """A checkpoint can be loaded into a model of the same base and shape only."""
    wanted, given = spec_fields(model.spec), checkpoint.spec
    for name in ("base_model", "rank", "train_attn", "train_mlp", "train_unembed"):
        if wanted[name] != given.get(name):
            raise RequestError(
                f"{checkpoint.path} has {name} {given.get(name)} and the model has {wanted[name]}; "
                "use create_training_client_from_state, which makes a model that fits."
            )


def _save(asked: types.SaveWeights | types.SaveWeightsForSampler, model: Model, kind: Kind) -> Save:
    name = check_name(asked.path if asked.path is not None else f"{asked.seq_id:06d}")
    return Save(
        path=str(TinkerPath(model.id, kind, name)),
        base_model=model.spec.base_model,
        spec=spec_fields(model.spec),
        optimizer=kind == "weights",
        overwrite=isinstance(asked, types.SaveWeights) and asked.overwrite,
        ttl_seconds=asked.ttl_seconds,
        user_metadata=asked.user_metadata or {},
    )


def _load(asked: types.LoadWeights, model: Model, service: Service) -> Load:
    checkpoint, directory = service.shelf.find(asked.path)
    _check_fits(checkpoint, model)
    if asked.optimizer and checkpoint.kind != "weights":
        raise RequestError(
            f"{asked.path} was saved for sampling and has no optimizer state; "
            "load it without, or load a checkpoint of save_state."
        )
    return Load(asked.path, directory, asked.optimizer)


def routes(service: Service) -> list[Route]:
    async def save_weights(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.SaveWeights)
        with numbered(service, asked.model_id, asked.seq_id) as model:
            save = _save(asked, model, "weights")
            future_id = await service.submit(OpKind.SAVE, model.id, asked.seq_id, save, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def save_weights_for_sampler(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.SaveWeightsForSampler)
        number = asked.sampling_session_seq_id
        with numbered(service, asked.model_id, asked.seq_id) as model:
            if asked.path is None and number is not None:
                future_id = await service.freeze(model, asked.seq_id, number, body)
            else:
                save = _save(asked, model, "sampler_weights")
                future_id = await service.submit(OpKind.SAVE, model.id, asked.seq_id, save, body)
        return answer({"request_id": future_id, "model_id": model.id})

    async def load_weights(request: Request) -> Response:
        asked, body = await read_numbered(service, request, types.LoadWeights)
        if asked.model_id is None or asked.seq_id is None:
            raise RequestError(
                "load_weights needs model_id and seq_id: create the model first, then load into it."
            )
        with numbered(service, asked.model_id, asked.seq_id) as model:
            load = _load(asked, model, service)
            future_id = await service.submit(OpKind.LOAD, model.id, asked.seq_id, load, body)
        return answer({"request_id": future_id, "model_id": model.id})

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
            }
        )

    return [
        post("save_weights", save_weights),
        post("save_weights_for_sampler", save_weights_for_sampler),
        post("load_weights", load_weights),
        post("weights_info", weights_info),
    ]
