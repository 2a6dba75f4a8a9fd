"""JSON requests: unknown fields are ignored, known ones must have the right type."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import core_schema

from tinsmith.errors import RequestError
from tinsmith.service.wire.compat import CLONE_STRIDE

Name = Annotated[str, Field(max_length=1024)]  # of a thing that is looked up
SeqId = Annotated[int, Field(ge=0, le=2**63 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Ttl = Annotated[int, Field(ge=1, le=10 * 366 * 24 * 3600)]
T = TypeVar("T", bound="WireModel")
MOST_ERRORS = 1000


def _storable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(value)
    except TypeError:
        raise ValueError(
            "it holds a number of more than 64 bits, or is nested too deeply"
        ) from None
    return value


Metadata = Annotated[dict[str, Any], AfterValidator(_storable)]  # whatever, but it must be kept


def _stop_at_first(schema: Any) -> None:
    """Of a list with a million wrong items one is found, not a million: each would be kept in memory."""
    if isinstance(schema, dict):
        found = cast("dict[str, Any]", schema)
        if found.get("type") == "list":
            found["fail_fast"] = True
        for inner in found.values():
            _stop_at_first(inner)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            _stop_at_first(inner)


class WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        _stop_at_first(schema)
        return schema


class CreateSession(WireModel):
    tags: list[str] = []
    user_metadata: Metadata | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionHeartbeat(WireModel):
    session_id: Name


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
    session_id: Name
    model_seq_id: SeqId
    base_model: Name
    user_metadata: Metadata | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class GetInfo(WireModel):
    model_id: Name


class AdamParams(WireModel):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStep(WireModel):
    model_id: Name
    seq_id: SeqId
    adam_params: AdamParams | None = None
    optimizer_params: OptimizerConfig | None = None


class SaveWeights(WireModel):
    model_id: Name
    seq_id: SeqId
    path: Name | None = None
    ttl_seconds: Ttl | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    age_encryption_recipients: list[str] | None = None


class SaveWeightsForSampler(WireModel):
    model_id: Name
    seq_id: SeqId
    path: Name | None = None
    sampling_session_seq_id: SeqId | None = None
    ttl_seconds: Ttl | None = None
    user_metadata: dict[str, str] | None = None


class LoadWeights(WireModel):
    """Into a model (model_id, seq_id), or to make one (session_id, model_seq_id)."""

    path: Name
    optimizer: bool
    model_id: Name | None = None
    seq_id: SeqId | None = None
    session_id: Name | None = None
    model_seq_id: SeqId | None = None
    base_model: Name | None = None
    user_metadata: Metadata | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class WeightsInfo(WireModel):
    tinker_path: Name


class CreateSamplingSession(WireModel):
    session_id: Name
    sampling_session_seq_id: SeqId
    base_model: Name | None = None
    model_path: Name | None = None


class JoinSamplingSession(WireModel):
    sampling_session_id: Name


class Chunk(WireModel):
    type: str = "encoded_text"
    tokens: list[int] | None = None


class ModelInput(WireModel):
    chunks: Annotated[list[Chunk], Field(max_length=100_000)]


class SamplingParams(WireModel):
    max_tokens: int | None = None
    seed: Seed | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class TokenTable(WireModel):
    """Token ids [rows, columns], dense or in compressed sparse rows."""

    data: list[Int64]
    dtype: Literal["int64"] = "int64"
    shape: Annotated[list[Int64], Field(min_length=2, max_length=2)]
    sparse_crow_indices: list[Int64] | None = None
    sparse_col_indices: list[Int64] | None = None


class SampleRequest(WireModel):
    sampling_session_id: Name
    seq_id: SeqId
    prompt: ModelInput
    num_samples: Annotated[int, Field(le=10_000)] = 1
    sampling_params: SamplingParams = SamplingParams()
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TokenTable | None = None
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
    request_id: Name
    allow_metadata_only: bool = False


class FuturesTarget(WireModel):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: Name
    cloned_sampler_id: Annotated[int, Field(ge=0, le=2**63 // CLONE_STRIDE - 1)] = 0


class RetrieveFutures(WireModel):
    target: FuturesTarget
    prev_cursor: Int64 = 0
    timeout: float | None = None
    retrieved_request_ids: Annotated[list[Name], Field(max_length=100_000)] = []


class CancelFuture(WireModel):
    request_id: Name


def parse(model: type[T], body: bytes) -> T:
    """The request in `body`, or one sentence saying which field is wrong and why."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:  # to list them takes seconds
            raise RequestError(
                f"the request is malformed in {error.error_count()} places.", status=422
            ) from None
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise RequestError(f"the request is malformed: {message}{more}.", status=422) from None
