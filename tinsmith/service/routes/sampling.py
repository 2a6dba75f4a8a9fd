"""Sampling: asample, and what a sampler reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.service.core import Service
from tinsmith.service.requests import sample_of
from tinsmith.service.routes.http import answer, get, post, read
from tinsmith.service.wire import types


def routes(service: Service) -> list[Route]:
    async def asample(request: Request) -> Response:
        asked, body = await read(request, types.SampleRequest, data=True)
        sampler = service.sampler(asked.sampling_session_id)
        sample = sample_of(asked, sampler, await service.describe(sampler.base_model))
        future_id = await service.desk.submit_sample(sampler, asked.seq_id, sample, body)
        sequences = [f"{future_id}/{number}" for number in range(asked.num_samples)]
        return answer({"request_id": future_id, "sample_sequence_ids": sequences})

    async def get_sampler(request: Request) -> Response:
        sampler = service.sampler(request.path_params["sampler_id"])
        info = await service.describe(sampler.base_model)
        # The SDK loads a sampler's tokenizer by this name.
        name = info.name if info.on_hub else str(info.directory)
        return answer(
            {"sampler_id": sampler.id, "base_model": name, "model_path": sampler.model_path}
        )

    return [
        post("asample", asample, takes=types.SampleRequest, does="Samples from a prompt."),
        get("samplers/{sampler_id}", get_sampler, does="What a sampler reads."),
    ]
