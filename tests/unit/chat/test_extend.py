"""Conversations that go on by their own tokens, where a model's way of writing tells how."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tinsmith.chat.render import PlainRenderer, TemplateRenderer, make_renderer
from tinsmith.chat.turns import Action
from tinsmith.settings import EMBEDDED_MODEL

QUESTION = [{"role": "user", "content": "What is 47 + 38?"}]
RESULT = [{"role": "tool", "content": "85"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast.from_pretrained(str(files("tinsmith") / "tiny"))


def test_every_earlier_token_stays_as_it_was(tokenizer):
    renderer = TemplateRenderer(tokenizer, "Qwen/Qwen3-8B")
    observation = renderer.prompt(QUESTION)
    # Not how the tokenizer would write 85, which it knows as fewer tokens.
    said = [tokenizer.convert_tokens_to_ids(token) for token in ("8", "5", "<|im_end|>")]
    extended = renderer.extend(observation, Action(said, [-1.0] * 3, "stop"), RESULT)
    assert extended is not None
    before = observation.tokens_T + said
    assert extended.tokens_T[: len(before)] == before
    assert extended.stop == observation.stop
    assert "<tool_response>\n85\n</tool_response>" in renderer.text(
        extended.tokens_T[len(before) :]
    )


def test_where_it_is_not_known_there_is_none(tokenizer):
    action = Action([17], [-1.0], "stop")
    for renderer in (make_renderer(tokenizer, EMBEDDED_MODEL), PlainRenderer(tokenizer)):
        assert renderer.extend(renderer.prompt(QUESTION), action, RESULT) is None
