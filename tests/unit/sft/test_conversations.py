"""Lines of a JSONL file: the three forms, and a sentence for everything else."""

from __future__ import annotations

import json

import pytest

from tinsmith.errors import ConfigError
from tinsmith.sft.conversations import read_conversations, refuse_bad

PAIR = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def read(tmp_path, *lines: object):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(texts) + "\n")
    return read_conversations(path)


@pytest.mark.parametrize(
    "line",
    [
        {"messages": PAIR},
        {"prompt": "1+1?", "completion": "2"},
        {"question": "1+1?", "answer": "2", "id": 7},
        {"prompt": PAIR[:1], "completion": PAIR[1:]},
        {"messages": [*PAIR, {"role": "user", "content": "thanks"}]},
    ],
)
def test_every_form_is_the_same_conversation(tmp_path, line):
    file = read(tmp_path, line)
    assert list(file.conversations[0].messages) == PAIR
    assert not file.bad


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ([1], "must be an object"),
        ({"text": "x"}, "must have messages, prompt and completion, or question and answer (has text)"),
        ({"question": "x"}, "(has question)"),
        ({"messages": []}, "messages must be a list with at least one message"),
        ({"messages": ["x"]}, "message 1 must be an object with role and content"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role must be one of"),
        ({"messages": [PAIR[0], {"role": "assistant"}]}, "message 2: content must be text (got NoneType)"),
        ({"messages": PAIR[:1]}, "has no message of the assistant after another one"),
        ({"question": "1+1?", "answer": " "}, "the assistant says nothing"),
        ({"question": "1+1?", "answer": 2}, "answer must be text (got int)"),
        ({"question": "\ud800", "answer": "2"}, "half of a surrogate pair"),
        ({"messages": [PAIR[0], {**PAIR[1], "tool_calls": [1]}]}, "message 2 has tool_calls"),
        ({"messages": PAIR, "tools": [{}]}, "has tools, which sft does not train on"),
    ],
)  # fmt: skip
def test_a_bad_line_has_its_number_and_its_reason(tmp_path, line, reason):
    file = read(tmp_path, {"question": "1+1?", "answer": "2"}, "", line)
    assert [one.line for one in file.bad] == [3]
    assert reason in file.bad[0].reason
    with pytest.raises(
        ConfigError, match=r"1 line that cannot be trained on\. line 3: .*skip_bad=true"
    ):
        refuse_bad(file.path, file.bad, skip_bad=False)
    refuse_bad(file.path, file.bad, skip_bad=True)


def test_only_the_first_bad_lines_are_named(tmp_path):
    file = read(tmp_path, *["{"] * 7)
    with pytest.raises(ConfigError, match=r"7 lines .*line 5: .*; and 2 more"):
        refuse_bad(file.path, file.bad, skip_bad=False)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"question": "a", "answer": "b"}\r\n{"question": "\xff", "answer": "b"}\n'
    )
    file = read_conversations(path)
    assert [one.line for one in file.conversations] == [1]
    assert file.bad[0].reason == "not UTF-8"


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        read_conversations(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is a directory"):
        read_conversations(tmp_path)
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_conversations(tmp_path / "empty")
