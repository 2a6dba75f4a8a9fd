"""The format of a base model: templates as transformers renders them, and sentences where there is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import tinsmith
from tinsmith.errors import ModelError, RequestError
from tinsmith.service.text.format import TextFormat, load_format

TINY = Path(tinsmith.__file__).parent / "tiny"
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
    },
}
HELLO = [{"role": "user", "content": "Hello, wörld"}]


@pytest.fixture(scope="module")
def tiny() -> TextFormat:
    return load_format("tinsmith/tiny", TINY)


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    """A copy of the embedded model's tokenizer with other settings."""

    def make(**settings: Any) -> TextFormat:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY / file, tmp_path)
        file = tmp_path / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        return load_format("changed", tmp_path)

    return make


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_a_conversation_is_rendered_as_transformers_does(tiny: TextFormat, tools: Any) -> None:
    call = {"name": "python", "arguments": {"code": "1 + 1"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": "2"},
    ]
    oracle: Any = AutoTokenizer.from_pretrained(str(TINY))
    want = oracle.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )
    assert list(tiny.render(messages, tools)) == want
    # A client sends the arguments as JSON in a string, and templates want them as a value.
    written = json.loads(json.dumps(messages))
    written[2]["tool_calls"][0]["function"]["arguments"] = json.dumps(call["arguments"])
    assert list(tiny.render(written, tools)) == want


def test_the_last_message_can_be_continued(tiny: TextFormat) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well, I"}]
    tokens = tiny.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert tiny.decode(tokens).endswith("<|im_start|>assistant\nWell, I")


def test_options_reach_the_template(changed: Any) -> None:
    loud = changed(chat_template="{{ messages[0].content }}{% if loud %}!{% endif %}")
    assert loud.decode(loud.render(HELLO, None, {"loud": True})) == "Hello, wörld!"
    assert loud.decode(loud.render(HELLO)) == "Hello, wörld"


@pytest.mark.parametrize("name", ["chat_template", "tools", "tokenize", "add_generation_prompt"])
def test_options_cannot_replace_what_the_service_sets(tiny: TextFormat, name: str) -> None:
    with pytest.raises(RequestError, match=f"may not hold '{name}'"):
        tiny.render(HELLO, None, {name: "x"})


def test_a_model_without_a_template_is_a_sentence(changed: Any) -> None:
    with pytest.raises(RequestError, match=r"has no chat template.*use /v1/completions"):
        changed(chat_template=None).render(HELLO)


def test_a_template_that_ignores_tools_is_a_sentence(changed: Any) -> None:
    plain = changed(chat_template="{{ messages[0].content }}")
    with pytest.raises(RequestError, match="has no place for tools"):
        plain.render(HELLO, [TOOL])


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ 1 + messages[0].content }}"]
)
def test_what_a_template_refuses_is_a_sentence(changed: Any, template: str) -> None:
    with pytest.raises(RequestError, match="does not take these messages"):
        changed(chat_template=template).render(HELLO)


def test_a_directory_without_a_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer of"):
        load_format(str(tmp_path), tmp_path)


def test_marks_of_tool_calls_are_text_even_where_they_are_special(tmp_path: Path) -> None:
    described = json.loads((TINY / "tokenizer.json").read_text())
    for token in described["added_tokens"]:
        token["special"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    shutil.copy(TINY / "tokenizer_config.json", tmp_path)
    special = load_format("special", tmp_path).special
    assert special == {759, 760, 761, 764, 765}


def test_settings_of_training_do_not_cut_prompts(tmp_path: Path) -> None:
    described = json.loads((TINY / "tokenizer.json").read_text())
    described["truncation"] = {
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    shutil.copy(TINY / "tokenizer_config.json", tmp_path)
    assert len(load_format("cut", tmp_path).encode("one two three four five six")) > 4
