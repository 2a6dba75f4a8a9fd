"""Sampling: asample, and what a sampler reads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinsmith.errors import RequestError
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import SampleJob
from tinsmith.service.engine.checks import check_sample
from tinsmith.service.ops import Sample
from tinsmith.service.routes.http import answer, get, post, read
from tinsmith.service.tenants import Sampler
from tinsmith.service.wire import types
from tinsmith.settings import EMBEDDED_MODEL


def _refuse_unknown(asked: types.SampleRequest) -> None:
    """What is asked for and cannot be given must not be left out silently."""
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if getattr(asked, name) > 0:
            raise RequestError(f"{name} is not there yet; leave it at 0.")
    if asked.target_prompt_logprobs is not None:
        raise RequestError("target_prompt_logprobs is not there yet; leave it out.")
    if asked.prompt_logprobs_last_n is not None and not asked.prompt_logprobs:
        raise RequestError("prompt_logprobs_last_n needs prompt_logprobs.")


def _job(asked: types.SampleRequest, sampler: Sampler) -> SampleJob:
    params = asked.sampling_params
    stop = (params.stop,) if isinstance(params.stop, str) else params.stop
    return SampleJob(
        base_model=sampler.base_model,
        weights=sampler.weights,
        prompt=asked.tokens(),
        num_samples=asked.num_samples,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop=None if stop is None else tuple(stop),
        seed=params.seed,
        prompt_logprobs=bool(asked.prompt_logprobs),
    )


def routes(service: Service) -> list[Route]:
    async def asample(request: Request) -> Response:
        asked, body = await read(request, types.SampleRequest)
        sampler = service.sampler(asked.sampling_session_id)
        _refuse_unknown(asked)
        job = _job(asked, sampler)
        check_sample(job, await service.describe(sampler.base_model))
        sample = Sample(job, sampler.source, asked.prompt_logprobs_last_n)
        future_id = await service.submit_sample(sampler, asked.seq_id, sample, body)
        sequences = [f"{future_id}/{number}" for number in range(job.num_samples)]
        return answer({"request_id": future_id, "sample_sequence_ids": sequences})

    async def get_sampler(request: Request) -> Response:
        sampler = service.sampler(request.path_params["sampler_id"])
        info = await service.describe(sampler.base_model)
        # The SDK loads a sampler's tokenizer by this name, and the embedded model is on no hub.
        name = str(info.directory) if info.name == EMBEDDED_MODEL else info.name
        return answer(
            {"sampler_id": sampler.id, "base_model": name, "model_path": sampler.model_path}
        )

    return [post("asample", asample), get("samplers/{sampler_id}", get_sampler)]
