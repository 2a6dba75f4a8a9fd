"""Messages to tokens and back, with the embedded model's tokenizer and with one without a template."""

from __future__ import annotations

from importlib.resources import files

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tinsmith.chat.render import PlainRenderer, TemplateRenderer, make_renderer
from tinsmith.chat.turns import Action
from tinsmith.settings import EMBEDDED_MODEL

QUESTION = [{"role": "user", "content": "What is 47 + 38?"}]


@pytest.fixture(scope="module")
def embedded():
    directory = str(files("tinsmith") / "tiny")
    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture(scope="module")
def plain():
    """A tokenizer of bytes that has never heard of chats."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def said(tokenizer, text: str) -> Action:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return Action(tokens, [-1.0] * len(tokens), "stop")


def test_the_embedded_model_speaks_chatml(embedded):
    renderer = make_renderer(embedded, EMBEDDED_MODEL)
    assert isinstance(renderer, TemplateRenderer)
    observation = renderer.prompt(QUESTION)
    assert renderer.text(observation.tokens_T) == (
        "<|im_start|>user\nWhat is 47 + 38?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert observation.stop == (embedded.convert_tokens_to_ids("<|im_end|>"),)


@pytest.mark.parametrize("text", ["85<|im_end|>", "85", "  85 \n<|im_end|>", ""])
def test_replies_lose_only_their_ending(embedded, text):
    renderer = make_renderer(embedded, EMBEDDED_MODEL)
    assert renderer.parse(said(embedded, text)) == text.removesuffix("<|im_end|>")


def test_a_base_model_gets_questions_and_answers(plain):
    renderer = make_renderer(plain, "someone/base")
    assert isinstance(renderer, PlainRenderer)
    messages = [{"role": "system", "content": "Add."}, *QUESTION]
    observation = renderer.prompt(messages)
    assert renderer.text(observation.tokens_T) == "Add.\nQuestion: What is 47 + 38?\nAnswer:"
    assert observation.stop == ("\nQuestion:",)


@pytest.mark.parametrize("text", [" 85\nQuestion:", " 85", " 85\nQuestion: What is 1 + 1?"])
def test_a_base_models_reply_ends_at_the_next_question(plain, text):
    assert make_renderer(plain, "someone/base").parse(said(plain, text)) == "85"
