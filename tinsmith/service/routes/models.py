"""Models: create, and what is known of one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.engine.checks import check_lora
from tinsmith.service.requests import lora_of
from tinsmith.service.routes.http import answer, post, read
from tinsmith.service.wire import types


def routes(service: Service) -> list[Route]:
    async def create_model(request: Request) -> Response:
        asked, body = await read(request, types.CreateModel)
        spec = lora_of(asked)
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
                "optimizer_config": {"type": "adamw"},
            }
        )

    return [
        post("create_model", create_model, takes=types.CreateModel, does="A new adapter to train."),
        post("get_info", get_info, takes=types.GetInfo, does="What is known of a model."),
    ]
