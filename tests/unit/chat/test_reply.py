"""The tokens a model learns to say: against templates' own masks and against hand-built expectations."""

from __future__ import annotations

from importlib.resources import files

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tinsmith.chat.render import make_renderer
from tinsmith.errors import ModelError
from tinsmith.settings import EMBEDDED_MODEL

SHORT = [{"role": "user", "content": "What is 47 + 38?"}, {"role": "assistant", "content": "85"}]
LONG = [
    {"role": "system", "content": "Add."},
    *SHORT,
    {"role": "user", "content": "And 1 + 1?"},
    {"role": "assistant", "content": "2, of course"},
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Says "Bot:" only where it asks for a reply, and ends no message.
OPEN = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
PREFILLED = OPEN.replace("'assistant:'", "'assistant: <think>'")


def byte_tokenizer(template: str | None, specials: list[str], eos: str | None = None):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, additional_special_tokens=specials
    )
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def embedded():
    return PreTrainedTokenizerFast.from_pretrained(str(files("tinsmith") / "tiny"))


@pytest.fixture(scope="module")
def chatml():
    return byte_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"], eos="<|im_end|>")


@pytest.fixture(scope="module")
def llama():
    names = ["begin_of_text", "start_header_id", "end_header_id", "eot_id"]
    return byte_tokenizer(LLAMA, [f"<|{name}|>" for name in names], eos="<|eot_id|>")


def shown_and_said(tokenizer, messages, name: str = "someone/model") -> tuple[str, str]:
    reply = make_renderer(tokenizer, name).reply(messages)
    said_from = reply.said_T.index(True)
    assert reply.said_T[said_from:] == [True] * (len(reply.said_T) - said_from)
    shown, said = reply.tokens_T[:said_from], reply.tokens_T[said_from:]
    return tokenizer.decode(shown), tokenizer.decode(said)


def test_the_embedded_model(embedded):
    shown, said = shown_and_said(embedded, LONG, EMBEDDED_MODEL)
    assert shown == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\nWhat is 47 + 38?<|im_end|>\n"
        "<|im_start|>assistant\n85<|im_end|>\n<|im_start|>user\nAnd 1 + 1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert said == "2, of course<|im_end|>"


def test_a_llama_template(llama):
    shown, said = shown_and_said(llama, SHORT)
    assert shown == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is 47 + 38?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert said == "85<|eot_id|>"


@pytest.mark.parametrize("messages", [SHORT, LONG])
def test_what_is_shown_is_what_sampling_would_show(embedded, llama, chatml, messages):
    for tokenizer in (embedded, llama, chatml):
        renderer = make_renderer(tokenizer, "someone/model")
        prompt = renderer.prompt(messages[:-1])
        reply = renderer.reply(messages)
        assert reply.tokens_T[: reply.said_T.index(True)] == prompt.tokens_T
        assert reply.tokens_T[-1] in prompt.stop


def test_the_same_tokens_as_the_templates_own_mask(chatml):
    """`{% generation %}` marks every reply; ours marks the last and leaves out what follows it."""
    theirs = chatml.apply_chat_template(
        LONG, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    last_user = len(chatml.apply_chat_template(LONG[:-1], tokenize=True, return_dict=False))
    mask = [bool(m) and at >= last_user for at, m in enumerate(theirs["assistant_masks"])]
    reply = make_renderer(chatml, "someone/model").reply(LONG)
    length = len(reply.tokens_T)
    assert reply.tokens_T == theirs["input_ids"][:length]
    assert reply.said_T == mask[:length]
    assert not any(mask[length:])


def test_words_that_look_like_the_end_do_not_train_what_comes_after(embedded):
    messages = [SHORT[0], {"role": "assistant", "content": "85<|im_end|>\nand more"}]
    assert shown_and_said(embedded, messages)[1] == "85<|im_end|>"


def test_a_message_the_template_leaves_open_is_ended():
    tokenizer = byte_tokenizer(OPEN, ["<end>"], eos="<end>")
    assert shown_and_said(tokenizer, SHORT) == ("user: What is 47 + 38?\nassistant:", " 85\n<end>")


def test_a_template_that_opens_replies_otherwise_is_refused():
    tokenizer = byte_tokenizer(PREFILLED, ["<end>"], eos="<end>")
    with pytest.raises(ModelError, match=r"chat template of someone/model writes"):
        make_renderer(tokenizer, "someone/model").reply(SHORT)


@pytest.mark.parametrize(("eos", "ending"), [("<end>", "<end>"), (None, "\nQuestion:")])
def test_a_model_without_a_template(eos, ending):
    tokenizer = byte_tokenizer(None, ["<end>"], eos=eos)
    shown, said = shown_and_said(tokenizer, SHORT)
    assert shown == "Question: What is 47 + 38?\nAnswer:"
    assert said == " 85" + ending
