"""Requests of the OpenAI API: what is taken, what is ignored, and what is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import Field, ValidationError

from tinsmith.errors import RequestError
from tinsmith.service.wire.types import Seed, WireModel

MAX_CHOICES = 1024  # of one request: prompts times n
MAX_ALTERNATIVES = 20
MAX_STOPS = 64
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's

# They say nothing about the answer.
IGNORED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
    ]
)
# They would change the answer, and only these values of them ask for what is given anyway.
ONLY: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
}
Stop = Annotated[str, Field(min_length=1, max_length=1024)]
REPLACED = {"functions": "tools", "function_call": "tool_choice"}


class ApiError(RequestError):
    """A refusal that names the field it is about."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message, status)
        self.param = param
        self.code = code


class StreamOptions(WireModel):
    include_usage: bool = False
    include_obfuscation: bool = False  # asks for padding against eavesdroppers; none is needed here


class Generation(WireModel):
    """What both kinds of request share."""

    model: Annotated[str, Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(Generation):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    echo: bool | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[one for one in self.prompt if isinstance(one, int)]]
        return [one for one in self.prompt if not isinstance(one, int)]


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class CalledFunction(WireModel):
    name: str
    arguments: str


class CalledTool(WireModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def as_template_input(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role
        text = self.content or ""
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text)
        rest = self.model_dump(include={"name", "tool_calls", "tool_call_id", "reasoning_content"})
        return {"role": role, "content": text, **{k: v for k, v in rest.items() if v}}


class Function(WireModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None  # true asks for answers that must fit the schema


class Tool(WireModel):
    type: Literal["function"]
    function: Function


class Tools(WireModel):
    """What the tools of a request must be; templates get them as they came."""

    tools: list[Tool]


class ChatRequest(Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def usable_tools(self) -> list[dict[str, Any]] | None:
        """As the client wrote them, to the order of their fields; none when none may be called."""
        return None if self.tool_choice == "none" else self.tools or None


R = TypeVar("R", bound=Generation)


def parse_request(model: type[R], body: bytes) -> R:
    """The request in `body`, or a refusal that names the field."""
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ApiError("the body must be a JSON object.")
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if name not in model.model_fields and name not in IGNORED:
            _refuse_unless_neutral(name, value)
    try:
        asked = model.model_validate({k: v for k, v in given.items() if k in model.model_fields})
        if isinstance(asked, ChatRequest):
            Tools.model_validate({"tools": asked.tools or []})
    except ValidationError as error:
        raise _refusal(error) from None
    _check(asked)
    return asked


def _refuse_unless_neutral(name: str, value: Any) -> None:
    if name in ONLY:
        if value in ONLY[name]:
            return
        only = " or ".join(orjson.dumps(one).decode() for one in ONLY[name])
        raise ApiError(
            f"{name} is not supported; leave it out (or give {only}).",
            param=name,
            code="unsupported_parameter",
        )
    if name in REPLACED:
        message = f"{name} is not supported; use {REPLACED[name]}."
    else:
        message = f"{name} is not a setting of this call; check its spelling or leave it out."
    raise ApiError(message, param=name, code="unsupported_parameter")


def _refusal(error: ValidationError) -> ApiError:
    """Where a value may be of several kinds, the fault that lies deepest says most."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = max(faults, key=lambda one: len(one["loc"]))
    names = [str(part) for part in fault["loc"]]
    kinds = ("str", "int", "float")  # and list[...]: pydantic's words for the kind it tried
    where = ".".join(name for name in names if name not in kinds and "[" not in name)
    param = names[0] if names else None
    return ApiError(f"{where}: {fault['msg']}.", param=param, code="invalid_value")


def _check(asked: Generation) -> None:
    """What the types alone do not say."""
    if asked.stream_options is not None and not asked.stream:
        raise ApiError("stream_options needs stream to be true.", param="stream_options")
    if asked.ignore_eos and (asked.stops or asked.stop_token_ids):
        raise ApiError(
            "ignore_eos cannot be combined with stop or stop_token_ids.", param="ignore_eos"
        )
    if isinstance(asked, CompletionRequest):
        if not asked.prompts:
            raise ApiError("prompt is empty; give a text or token ids.", param="prompt")
        if len(asked.prompts) * asked.choices > MAX_CHOICES:
            raise ApiError(
                f"{len(asked.prompts)} prompts with n={asked.choices} are more than {MAX_CHOICES} "
                "choices; send several requests.",
                param="n",
            )
        if asked.max_tokens == 0 and not asked.echo:
            raise ApiError(
                "max_tokens is 0, which only makes sense with echo; give at least 1.",
                param="max_tokens",
            )
    if isinstance(asked, ChatRequest):
        _check_chat(asked)


def _check_chat(asked: ChatRequest) -> None:
    if asked.max_tokens == 0:
        raise ApiError("max_tokens must be at least 1.", param="max_tokens")
    if asked.top_logprobs and not asked.logprobs:
        raise ApiError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if asked.tool_choice not in (None, "none", "auto"):
        raise ApiError(
            "tool_choice can be none or auto: a call cannot be forced on this service.",
            param="tool_choice",
            code="unsupported_value",
        )
    if asked.tool_choice == "auto" and not asked.tools:
        raise ApiError("tool_choice needs tools.", param="tool_choice")
    if asked.continue_final_message and asked.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt cannot both be true.",
            param="continue_final_message",
        )
