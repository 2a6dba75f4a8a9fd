"""Tool calls in what a model says: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from tinsmith.service.text.speech import partial_suffix

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # JSON


Piece: TypeAlias = str | ToolCall


def parse_call(inside: str) -> ToolCall | None:
    """The call written between the marks, or None when it is not one."""
    call = _json_object(inside)
    if call is None or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):  # some models write the arguments as JSON within JSON
        arguments = _json_object(arguments)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class ToolCallFilter:
    """Splits text into text and calls; what is no call stays text, to the letter.

    White space beside a call belongs to the call.
    """

    def __init__(self) -> None:
        self._held = ""
        self._inside = False  # `_held` begins with (white space and) the opening mark
        self._after_call = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The rest. A call that only lacks its closing mark counts: a stop string may have cut it."""
        pieces: list[Piece] = []
        rest, self._held = self._held, ""
        if self._inside:
            call = parse_call(rest.lstrip().removeprefix(OPEN))
            self._say(pieces, rest if call is None else call)
        elif not (self._after_call and rest.isspace()):
            self._say(pieces, rest)
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Takes one piece off what is held; False when more text must come first."""
        if self._inside:
            end = self._held.find(CLOSE)
            if end < 0:
                return False
            block, self._held = self._held[: end + len(CLOSE)], self._held[end + len(CLOSE) :]
            call = parse_call(block.lstrip()[len(OPEN) : -len(CLOSE)])
            self._say(pieces, block if call is None else call)
            self._inside = False
            return True
        start = self._held.find(OPEN)
        if start >= 0:
            sure, self._inside = len(self._held[:start].rstrip()), True
        else:
            maybe = partial_suffix(self._held, OPEN)
            sure = len(self._held[: len(self._held) - maybe].rstrip())
        self._say(pieces, self._held[:sure])
        self._held = self._held[sure:]
        return self._inside

    def _say(self, pieces: list[Piece], piece: Piece) -> None:
        if piece != "":
            pieces.append(piece)
            self._after_call = isinstance(piece, ToolCall)
