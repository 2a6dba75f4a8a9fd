"""Tool calls: what is one, what stays text, and white space beside them."""

from __future__ import annotations

import pytest

from tinsmith.service.text.tool_calls import Piece, ToolCall, ToolCallFilter, parse_call

CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "1 + 1"}}\n</tool_call>'
PYTHON = ToolCall("python", '{"code": "1 + 1"}')


def pieces_of(text: str) -> list[Piece]:
    found = ToolCallFilter()
    return found.feed(text) + found.finish()


@pytest.mark.parametrize(
    ("inside", "call"),
    [
        ('{"name": "f", "arguments": {}}', ToolCall("f", "{}")),
        ('{"name": "f"}', ToolCall("f", "{}")),
        ('{"arguments": {"é": [1.5, null]}, "name": "f"}', ToolCall("f", '{"é": [1.5, null]}')),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', ToolCall("f", '{"x": 1}')),
        ('{"name": "f", "arguments": "x"}', None),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f", "arguments": {"x": NaN}}', None),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', None),
        ('{"name": "", "arguments": {}}', None),
        ('{"name": 3}', None),
        ('{"function": "f"}', None),
        ('["f"]', None),
        ("{", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_what_is_a_call(inside: str, call: ToolCall | None) -> None:
    assert parse_call(inside) == call


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (CALL, [PYTHON]),
        (f"Let me see.\n{CALL}", ["Let me see.", PYTHON]),
        (f"{CALL}\n{CALL}\n", [PYTHON, PYTHON]),
        (f"{CALL}\nDone.", [PYTHON, "\nDone."]),
        (CALL.removesuffix("</tool_call>"), [PYTHON]),
        ("plain \n", ["plain", " \n"]),
        ("a <tool_call>{oops}</tool_call> b", ["a", " <tool_call>{oops}</tool_call>", " b"]),
        (f"<tool_call>{{oops}}</tool_call>{CALL}", ["<tool_call>{oops}</tool_call>", PYTHON]),
        ('<tool_call>{"name": "f", "argu', ['<tool_call>{"name": "f", "argu']),
        ("1 < 2 <tool", ["1 < 2", " <tool"]),
        ("</tool_call>", ["</tool_call>"]),
        ("", []),
    ],
)
def test_text_and_calls_come_apart(text: str, pieces: list[Piece]) -> None:
    assert pieces_of(text) == pieces


def test_a_call_is_given_as_soon_as_it_is_closed() -> None:
    found = ToolCallFilter()
    assert found.feed("Hm. <tool_") == ["Hm."]
    assert found.feed(CALL.removeprefix("<tool_").removesuffix(">")) == []
    assert found.feed("> and") == [PYTHON, " and"]
