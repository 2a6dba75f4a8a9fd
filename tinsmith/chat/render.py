"""Messages to tokens and back, over the `renderers` package; plain text for models without a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tinsmith.chat.turns import Action, Observation
from tinsmith.errors import ModelError

Message: TypeAlias = dict[str, str]  # role and content


@dataclass(frozen=True)
class Reply:
    """A conversation that ends with the assistant's words, as the model would have sampled them."""

    tokens_T: list[int]
    said_T: list[bool]  # the assistant's last message, with the token that ends it


class Renderer(Protocol):
    """What an environment needs of a model's way of writing conversations."""

    def prompt(self, messages: Sequence[Message]) -> Observation:
        """The conversation so far, up to where the assistant begins to speak."""
        ...

    def extend(
        self, observation: Observation, action: Action, messages: Sequence[Message]
    ) -> Observation | None:
        """The conversation after what was said and these messages, all earlier tokens as they were.

        None when the model's way of writing does not tell how; then `prompt` writes it all anew.
        """
        ...

    def parse(self, action: Action) -> str:
        """The text of what the assistant said, without the marks that end it."""
        ...

    def text(self, tokens_T: Sequence[int]) -> str:
        """Tokens as they are, special ones included: for records."""
        ...

    def reply(self, messages: Sequence[Message]) -> Reply:
        """The conversation, whose last message is the assistant's: what `prompt` shows, then what it says."""
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
        self._model_name = model_name

    def prompt(self, messages: Sequence[Message]) -> Observation:
        tokens = self._renderer.render_ids(list(messages), add_generation_prompt=True)  # type: ignore[arg-type]
        return Observation(list(tokens), tuple(self._renderer.get_stop_token_ids()))

    def extend(
        self, observation: Observation, action: Action, messages: Sequence[Message]
    ) -> Observation | None:
        bridged = self._renderer.bridge_to_next_turn(
            observation.tokens_T,
            action.tokens_T,
            list(messages),  # type: ignore[arg-type]
        )
        return None if bridged is None else Observation(list(bridged.token_ids), observation.stop)

    def parse(self, action: Action) -> str:
        return self._renderer.parse_response(action.tokens_T).content or ""

    def text(self, tokens_T: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens_T), skip_special_tokens=False)

    def reply(self, messages: Sequence[Message]) -> Reply:
        shown = self.prompt(messages[:-1])
        whole = list(self._renderer.render_ids(list(messages)))  # type: ignore[arg-type]
        start = len(shown.tokens_T)
        said = whole[start:]
        if whole[:start] != shown.tokens_T:
            before, after = self.text(shown.tokens_T), self.text(whole)
            if not after.startswith(before):
                return self._attributed(messages)
            # The first words made one token with the prompt's last, which nobody who samples would see.
            rest = after[len(before) :]
            said = list(self._tokenizer.encode(rest, add_special_tokens=False))
        stops = set(shown.stop)
        end = next((at for at, token in enumerate(said, start=1) if token in stops), None)
        if end is None:  # the template leaves the last message open: the model must still end it
            said = [*said, *(token for token in shown.stop[:1] if isinstance(token, int))]
        return _shown_then_said(shown.tokens_T, said[:end])

    def _attributed(self, messages: Sequence[Message]) -> Reply:
        """For templates that write a finished message otherwise than they ask for one."""
        from renderers import build_training_sample

        last_only = [*([False] * (len(messages) - 1)), True]
        sampled = self._renderer.render(list(messages)).sampled_mask  # type: ignore[arg-type]
        if not sampled:
            raise ModelError(
                f"the chat template of {self._model_name} writes a finished message otherwise than it asks for "
                "one, so what the model would say cannot be told from what it is shown. Choose another model_name."
            )
        sample = build_training_sample(
            self._renderer,
            list(messages),  # type: ignore[arg-type]
            message_loss_mask=last_only,  # type: ignore[arg-type]
            ensure_final_stop=True,
        )
        return Reply(sample.token_ids, sample.loss_mask)


def _shown_then_said(shown: Sequence[int], said: Sequence[int]) -> Reply:
    return Reply([*shown, *said], [*([False] * len(shown)), *([True] * len(said))])


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

    def extend(
        self, observation: Observation, action: Action, messages: Sequence[Message]
    ) -> Observation | None:
        return None  # where a reply ends in the middle of the next question, tokens cannot be kept

    def parse(self, action: Action) -> str:
        text = self._tokenizer.decode(action.tokens_T, skip_special_tokens=True)
        return text.split(PLAIN_STOP, 1)[0].strip()

    def text(self, tokens_T: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens_T), skip_special_tokens=False)

    def reply(self, messages: Sequence[Message]) -> Reply:
        shown = self.prompt(messages[:-1]).tokens_T
        # With the space that `prompt` leaves to the model.
        text = " " + messages[-1]["content"].strip()
        ending = self._tokenizer.eos_token_id
        if ending is None:
            return _shown_then_said(shown, self._encode(text + PLAIN_STOP))
        return _shown_then_said(shown, [*self._encode(text), ending])

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


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
