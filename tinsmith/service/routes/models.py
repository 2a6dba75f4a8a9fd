"""Models: create, and what is known of one."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import LoraSpec
from tinsmith.service.engine.checks import check_lora
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.wire import types


def _spec(asked: types.CreateModel) -> LoraSpec:
    if asked.lora_config is None:
        raise RequestError("lora_config is missing: this service trains LoRA adapters only.")
    if asked.optimizer_config.type != "adamw":
        raise RequestError(
            f"the optimizer {asked.optimizer_config.type!r} is not there; this service has adamw."
        )
    lora = asked.lora_config
    return LoraSpec(
        base_model=asked.base_model,
        rank=lora.rank,
        seed=lora.seed if lora.seed is not None else secrets.randbits(31),
        train_attn=lora.train_attn,
        train_mlp=lora.train_mlp,
        train_unembed=lora.train_unembed,
    )


def routes(service: Service) -> list[Route]:
    async def create_model(request: Request) -> Response:
        asked, body = await read(request, types.CreateModel)
        spec = _spec(asked)
        check_lora(spec, await service.describe(spec.base_model))
        future_id, model_id = await service.create_model(
            asked.session_id, asked.model_seq_id, spec, asked.user_metadata or {}, body
        )
        return answer({"request_id": future_id, "model_id": model_id})

    async def get_info(request: Request) -> Response:
        asked, _ = await read(request, types.GetInfo)
        model = service.model(asked.model_id)
        return answer(
            {
                "type": "get_info",
                "model_id": model.id,
                "model_data": {
                    "arch": model.info.architecture,
                    "model_name": model.spec.base_model,
                    "tokenizer_id": str(model.info.directory),
                },
                "is_lora": True,
                "lora_rank": model.spec.rank,
                "model_name": model.spec.base_model,
            }
        )

    return [post("create_model", create_model), post("get_info", get_info)]
