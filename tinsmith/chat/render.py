"""Messages to tokens and back, over the `renderers` package; plain text for models without a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from tinsmith.chat.turns import Action, Observation
from tinsmith.errors import ModelError

Message: TypeAlias = dict[str, str]  # role and content


class Renderer(Protocol):
    """What an environment needs of a model's way of writing conversations."""

    def prompt(self, messages: Sequence[Message]) -> Observation:
        """The conversation so far, up to where the assistant begins to speak."""
        ...

    def parse(self, action: Action) -> str:
        """The text of what the assistant said, without the marks that end it."""
        ...

    def text(self, tokens_T: Sequence[int]) -> str:
        """Tokens as they are, special ones included: for records."""
        ...


class TemplateRenderer:
    """For models with a chat template. Those the package knows by name get their own renderer."""

    def __init__(self, tokenizer: Any, model_name: str) -> None:
        from renderers import DefaultRendererConfig, config_from_name, create_renderer
        from renderers.base import MODEL_RENDERER_MAP

        # By the model's name, not the tokenizer's: the latter may be a directory on this disk.
        known = MODEL_RENDERER_MAP.get(model_name)
        config: Any = config_from_name(known) if known else DefaultRendererConfig()
        self._tokenizer = tokenizer
        self._renderer = create_renderer(tokenizer, config)

    def prompt(self, messages: Sequence[Message]) -> Observation:
        tokens = self._renderer.render_ids(list(messages), add_generation_prompt=True)  # type: ignore[arg-type]
        return Observation(list(tokens), tuple(self._renderer.get_stop_token_ids()))

    def parse(self, action: Action) -> str:
        return self._renderer.parse_response(action.tokens_T).content or ""

    def text(self, tokens_T: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens_T), skip_special_tokens=False)


PLAIN_NAMES = {"user": "Question: ", "assistant": "Answer: "}
PLAIN_STOP = "\nQuestion:"


class PlainRenderer:
    """For base models without a chat template: `Question: ...` and `Answer: ...` on lines of their own.

    Speech ends where the model begins the next question by itself, or at its end of text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, messages: Sequence[Message]) -> Observation:
        lines = [PLAIN_NAMES.get(m["role"], "") + m["content"] for m in messages]
        # No space after the colon: tokenizers of base models put it before the next word.
        text = "\n".join([*lines, "Answer:"])
        return Observation(list(self._tokenizer.encode(text)), (PLAIN_STOP,))

    def parse(self, action: Action) -> str:
        text = self._tokenizer.decode(action.tokens_T, skip_special_tokens=True)
        return text.split(PLAIN_STOP, 1)[0].strip()

    def text(self, tokens_T: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens_T), skip_special_tokens=False)


def make_renderer(tokenizer: Any, model_name: str) -> Renderer:
    """The renderer for a model: by its chat template when it has one, else plain text."""
    if not getattr(tokenizer, "chat_template", None):
        return PlainRenderer(tokenizer)
    try:
        return TemplateRenderer(tokenizer, model_name)
    except ValueError as error:
        raise ModelError(
            f"the chat template of {model_name} cannot be used: {error}. Choose another model_name."
        ) from error
