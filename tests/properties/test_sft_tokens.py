"""Whatever is said in a conversation: the learnt tokens are the assistant's words, no more and no less."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tinsmith.chat.render import make_renderer
from tinsmith.settings import EMBEDDED_MODEL
from tinsmith.sft.config import SftConfig
from tinsmith.sft.conversations import Conversation
from tinsmith.sft.data import render

END = "<|im_end|>"
# Any text that is not itself a mark of the template.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1, max_size=40)
TURNS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(files("tinsmith") / "tiny"))


@given(TURNS, st.one_of(st.none(), TEXTS))
@example([("0", "\n"), ("1", "\n2")], None)
def test_the_assistants_words_and_nothing_else(turns, system):
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answered},
        ]
    renderer = make_renderer(tokenizer(), EMBEDDED_MODEL)
    rendered = render([Conversation(1, tuple(messages))], renderer, SftConfig(max_length=10_000))
    sequences = rendered.examples[0].sequences
    learnt = [token for s in sequences for token in s.tokens_T[s.said_T].tolist()]
    assert tokenizer().decode(learnt) == "".join(answered + END for _, answered in turns)
    whole = tokenizer().apply_chat_template(messages, tokenize=True, return_dict=False)
    last = sequences[-1].tokens_T.tolist()
    assert tokenizer().decode(last) + "\n" == tokenizer().decode(whole)
    # An answer that begins with white space may make one token with what stands before it.
    if not any(answered[0].isspace() for _, answered in turns):
        assert len(sequences) == 1
        assert last == whole[: len(last)]
