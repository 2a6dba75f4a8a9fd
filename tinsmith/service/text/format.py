"""How a base model writes: its tokenizer, its chat template, the tokens that end its turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinsmith.errors import ModelError, RequestError
from tinsmith.service.text.token_bytes import token_bytes
from tinsmith.service.text.tool_calls import CLOSE, OPEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VISIBLE = (OPEN, CLOSE, "<think>", "</think>")  # text, even where a tokenizer calls them special
# Names that the renderer itself gives to a template; a request may give any other.
TAKEN = frozenset(
    [
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "conversation",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    ]
)

# What a template's expressions raise when messages are not as it expects them.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, RecursionError)

_LOADING = threading.Lock()


class TextFormat:
    """Text to tokens and back for one base model. Its methods may be called from any thread."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"{name!r} has no tokenizer.json; add one to use the model with text.")
        # Settings of its training must not cut prompts.
        backend.no_truncation()
        backend.no_padding()
        self.name = name
        self._tokenizer = tokenizer
        self._backend = backend
        self.bytes_of = token_bytes(backend)
        eos: Any = tokenizer.eos_token_id
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)
        self.special = frozenset(
            number
            for number, token in backend.get_added_tokens_decoder().items()
            if token.special and token.content not in VISIBLE
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """A bare text, with the mark of a beginning if the model wants one."""
        return tuple(self._backend.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as they are, special ones included."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> tuple[int, ...]:
        """A conversation as tokens, up to where the model is to go on."""
        if not self._tokenizer.chat_template:
            raise RequestError(
                f"{self.name} has no chat template, so it cannot chat; use /v1/completions with a "
                "prompt of your own, or a model that was made for chat."
            )
        taken = sorted(TAKEN & set(options or ()))
        if taken:
            raise RequestError(
                f"chat_template_kwargs may not hold {taken[0]!r}: it is set by the service."
            )
        settings = {
            **(options or {}),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        text = self._write(messages, tools, settings)
        if tools and text == self._write(messages, None, settings):
            raise RequestError(
                f"the chat template of {self.name} has no place for tools; describe them in a system "
                "message, or use a model whose template takes tools."
            )
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Mapping[str, Any],
    ) -> str:
        from jinja2 import TemplateError

        template: Any = self._tokenizer.apply_chat_template
        conversation = [_message(one) for one in messages]
        try:
            return template(
                conversation,
                tools=None if tools is None else list(tools),
                tokenize=False,
                **settings,
            )
        except (TemplateError, *_FAULTS) as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise RequestError(
                f"the chat template of {self.name} does not take these messages: {reason}."
            ) from None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """As templates expect it: arguments of earlier calls are values, not JSON in a string."""
    out = dict(message)
    calls = out.get("tool_calls")
    if calls:
        out["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _value(call["function"])}}
            for call in calls
        ]
    return out


def _value(function: Mapping[str, Any]) -> Any:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def load_format(name: str, directory: Path) -> TextFormat:
    """The format of a base model, read once; slow the first time, so not for the event loop."""
    with _LOADING:  # transformers cannot be imported by two threads at a time
        return _load_format(name, directory)


@lru_cache(maxsize=16)
def _load_format(name: str, directory: Path) -> TextFormat:
    from transformers import AutoTokenizer

    # A model on the hub may have only its config.json here so far.
    source = str(directory) if (directory / "tokenizer.json").is_file() else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the tokenizer of {name!r} cannot be read ({type(error).__name__}); a model directory "
            "needs tokenizer.json and tokenizer_config.json."
        ) from error
    return TextFormat(name, tokenizer)
