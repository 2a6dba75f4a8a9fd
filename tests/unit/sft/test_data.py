"""Conversations to tokens and weights, what is held out, and the order of training."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from tinsmith.chat.render import Reply, make_renderer
from tinsmith.settings import EMBEDDED_MODEL
from tinsmith.sft.config import SftConfig
from tinsmith.sft.conversations import Conversation
from tinsmith.sft.data import Batches, Example, render, split, total_steps


def talk(line: int, *contents: str) -> Conversation:
    roles = ("user", "assistant")
    messages = ({"role": roles[at % 2], "content": text} for at, text in enumerate(contents))
    return Conversation(line, tuple(messages))


@pytest.fixture(scope="module")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(str(files("tinsmith") / "tiny"))


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return make_renderer(tokenizer, EMBEDDED_MODEL)


def learnt(tokenizer, sequence) -> str:
    return tokenizer.decode(sequence.tokens_T[sequence.said_T])


def test_all_turns_of_a_conversation_are_one_sequence(tokenizer, renderer):
    rendered = render([talk(1, "a", "one", "b", "two")], renderer, SftConfig())
    (sequence,) = rendered.examples[0].sequences
    assert tokenizer.decode(sequence.tokens_T) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>"
    )
    assert learnt(tokenizer, sequence) == "one<|im_end|>two<|im_end|>"


def test_only_the_last_message_when_asked(tokenizer, renderer):
    config = SftConfig(train_on="last_assistant")
    rendered = render([talk(1, "a", "one", "b", "two")], renderer, config)
    (sequence,) = rendered.examples[0].sequences
    assert learnt(tokenizer, sequence) == "two<|im_end|>"


class Forgetful:
    """Like templates that drop old reasoning: the past is shown otherwise than it was said."""

    def reply(self, messages):
        shown = [9] * len(messages[:-1])
        return Reply([*shown, 1, 2], [*[False] * len(shown), True, True])


def test_a_template_that_rewrites_the_past_makes_a_sequence_of_each_turn():
    rendered = render([talk(1, "a", "one", "b", "two")], Forgetful(), SftConfig())  # type: ignore[arg-type]
    assert [s.tokens_T.tolist() for s in rendered.examples[0].sequences] == [
        [9, 1, 2],
        [9, 9, 9, 1, 2],
    ]
    assert [s.trained for s in rendered.examples[0].sequences] == [2, 2]


def test_weights_lie_on_the_tokens_that_are_predicted(renderer):
    (sequence,) = render([talk(1, "a", "one")], renderer, SftConfig()).examples[0].sequences
    datum = sequence.datum(0.5)
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    assert datum.model_input.to_ints() == sequence.tokens_T[:-1].tolist()
    assert targets.tolist() == sequence.tokens_T[1:].tolist()
    assert weights.tolist() == [0.5 if said else 0.0 for said in sequence.said_T[1:]]
    assert weights.sum() == pytest.approx(0.5 * sequence.trained)


def test_long_conversations_are_cut_or_skipped_and_counted(tokenizer, renderer):
    talks = [
        talk(1, "a", "one two three four five six"),
        talk(2, "a", "b"),
        talk(3, "long " * 30, "b"),
    ]
    cut = render(talks, renderer, SftConfig(max_length=16))
    assert [example.line for example in cut.examples] == [1, 2]
    assert (cut.cut, cut.too_long) == (1, 1)  # nothing of the third one's reply is left
    assert len(cut.examples[0].sequences[0].tokens_T) == 16
    assert not learnt(tokenizer, cut.examples[0].sequences[0]).endswith("<|im_end|>")
    skipped = render(talks, renderer, SftConfig(max_length=16, too_long="skip"))
    assert [example.line for example in skipped.examples] == [2]
    assert (skipped.cut, skipped.too_long) == (0, 2)


def test_what_the_template_refuses_is_a_bad_line(tokenizer):
    strict = PreTrainedTokenizerFast.from_pretrained(str(files("tinsmith") / "tiny"))
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    strict.chat_template = refuse + tokenizer.chat_template
    wrong = Conversation(5, ({"role": "system", "content": "x"}, *talk(5, "a", "b").messages))
    rendered = render(
        [talk(1, "a", "b"), wrong], make_renderer(strict, "someone/model"), SftConfig()
    )
    assert [example.line for example in rendered.examples] == [1]
    assert [one.line for one in rendered.bad] == [5]
    assert rendered.bad[0].reason == "the chat template refuses it (no system)"


def test_a_greeting_is_shown_but_not_learnt(tokenizer, renderer):
    greeted = Conversation(
        1, ({"role": "assistant", "content": "hello"}, *talk(1, "a", "one").messages)
    )
    (sequence,) = render([greeted], renderer, SftConfig()).examples[0].sequences
    assert "hello" in tokenizer.decode(sequence.tokens_T)
    assert learnt(tokenizer, sequence) == "one<|im_end|>"


def test_held_out_conversations_are_never_trained_on():
    talks = [talk(line, f"q{line % 40}", "a") for line in range(100)]  # with copies
    config = SftConfig(held_out=0.25, eval_size=8)
    train, held_out = split(talks, config)
    assert len(held_out) == 8
    texts = {one.messages[0]["content"] for one in train}
    assert not texts & {one.messages[0]["content"] for one in held_out}
    assert len(texts) == 32
    assert split(talks, config) == (train, held_out)
    assert split(talks, SftConfig(held_out=0.25, eval_size=8, seed=1))[1] != held_out


@pytest.mark.parametrize(
    ("talks", "share", "expected"), [(1, 0.9, 0), (2, 0.01, 1), (10, 0.0, 0), (3, 0.99, 2)]
)
def test_something_is_always_left_to_train_on(talks, share, expected):
    train, held_out = split(
        [talk(line, f"q{line}", "a") for line in range(talks)], SftConfig(held_out=share)
    )
    assert (len(train), len(held_out)) == (talks - expected, expected)


def test_every_epoch_has_every_conversation_once_in_its_own_order():
    examples = [Example(line, ()) for line in range(10)]
    batches = Batches(examples, batch_size=4, seed=3)
    assert batches.per_epoch == 3
    epochs = [
        [example.line for step in range(3 * e + 1, 3 * e + 4) for example in batches.batch(step)]
        for e in range(3)
    ]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [len(batches.batch(step)) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    again = Batches(examples, batch_size=4, seed=3)
    assert again.batch(8) == batches.batch(8)  # asked for first, as a resumed run does
    assert Batches(examples, batch_size=4, seed=4).batch(1) != batches.batch(1)


def test_how_long_a_run_is():
    assert total_steps(SftConfig(batch_size=4, num_epochs=3), 10) == 9
    assert total_steps(SftConfig(batch_size=4, num_epochs=3, num_batches=5), 10) == 5


def test_tokens_are_kept_small(renderer):
    (sequence,) = render([talk(1, "a", "one")], renderer, SftConfig()).examples[0].sequences
    assert sequence.tokens_T.dtype == np.int32
    assert sequence.said_T.dtype == np.bool_
