"""JSON requests: unknown fields are ignored, known ones must have the right type."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tinsmith.errors import RequestError

SeqId = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Ttl = Annotated[int, Field(ge=1, le=10 * 366 * 24 * 3600)]
T = TypeVar("T", bound="WireModel")


class WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())


class CreateSession(WireModel):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionHeartbeat(WireModel):
    session_id: str


class FinishReason(WireModel):
    type: str = "success"


class FinishSession(WireModel):
    reason: FinishReason = FinishReason()
    detail: str | None = None


class LoraConfig(WireModel):
    rank: int
    seed: Seed | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(WireModel):
    type: str = "adamw"


class CreateModel(WireModel):
    session_id: str
    model_seq_id: SeqId
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class GetInfo(WireModel):
    model_id: str


class AdamParams(WireModel):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(WireModel):
    model_id: str
    seq_id: SeqId
    adam_params: AdamParams | None = None
    optimizer_params: OptimizerConfig | None = None


class SaveWeights(WireModel):
    model_id: str
    seq_id: SeqId
    path: str | None = None
    ttl_seconds: Ttl | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveWeightsForSampler(WireModel):
    model_id: str
    seq_id: SeqId
    path: str | None = None
    sampling_session_seq_id: SeqId | None = None
    ttl_seconds: Ttl | None = None
    user_metadata: dict[str, str] | None = None


class LoadWeights(WireModel):
    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: SeqId | None = None


class WeightsInfo(WireModel):
    tinker_path: str


class CreateSamplingSession(WireModel):
    session_id: str
    sampling_session_seq_id: SeqId
    base_model: str | None = None
    model_path: str | None = None


class JoinSamplingSession(WireModel):
    sampling_session_id: str


class Chunk(WireModel):
    type: str = "encoded_text"
    tokens: list[int] | None = None


class ModelInput(WireModel):
    chunks: list[Chunk]


class SamplingParams(WireModel):
    max_tokens: int | None = None
    seed: Seed | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleRequest(WireModel):
    sampling_session_id: str
    seq_id: SeqId
    prompt: ModelInput
    num_samples: Annotated[int, Field(le=10_000)] = 1
    sampling_params: SamplingParams = SamplingParams()
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None

    def tokens(self) -> tuple[int, ...]:
        """The prompt's chunks joined; only text is taken."""
        joined: list[int] = []
        for chunk in self.prompt.chunks:
            if chunk.type != "encoded_text" or chunk.tokens is None:
                raise RequestError(
                    f"the prompt holds a chunk of type {chunk.type!r}; "
                    "this service takes encoded_text chunks only."
                )
            joined.extend(chunk.tokens)
        return tuple(joined)


class RetrieveFuture(WireModel):
    request_id: str
    allow_metadata_only: bool = False


class FuturesTarget(WireModel):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: SeqId = 0


class RetrieveFutures(WireModel):
    target: FuturesTarget
    prev_cursor: int = 0
    timeout: float | None = None
    retrieved_request_ids: list[str] = []


class CancelFuture(WireModel):
    request_id: str


def parse(model: type[T], body: bytes) -> T:
    """The request in `body`, or one sentence saying which field is wrong and why."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise RequestError(f"the request is malformed: {message}{more}.", status=422) from None
