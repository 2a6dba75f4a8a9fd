"""Reads conversations from a JSONL file; every line that cannot be used has a sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.chat.render import Message
from tinsmith.errors import ConfigError, StorageError

ROLES = ("system", "user", "assistant", "tool")
# The two short forms: the user's side and the assistant's.
PAIRS = (("prompt", "completion"), ("question", "answer"))
# What would change a message's tokens and cannot be rendered here: ignoring it would train on something else.
UNSUPPORTED = ("tool_calls", "function_call", "tools", "functions")
SHOWN = 5  # bad lines that a sentence names
FORMS = (
    '{"messages": [...]}, {"prompt": ..., "completion": ...} or {"question": ..., "answer": ...}'
)


@dataclass(frozen=True)
class Conversation:
    line: int  # where it stands in the file, from 1
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class BadLine:
    line: int
    reason: str


@dataclass(frozen=True)
class ConversationFile:
    """What was read. `digest` changes with the file's bytes."""

    path: Path
    digest: str
    conversations: list[Conversation]
    bad: list[BadLine]


def read_conversations(path: Path) -> ConversationFile:
    """Every line of the file: a conversation, or a reason why it is none. Empty lines count as neither."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}. Check data.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"data must be a JSONL file, and {path} is a directory.") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}.") from error
    conversations: list[Conversation] = []
    bad: list[BadLine] = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            conversations.append(Conversation(number, tuple(_messages(line))))
        except _Unusable as error:
            bad.append(BadLine(number, str(error)))
    if not conversations and not bad:
        raise ConfigError(f"{path} is empty. Each line must be {FORMS}.")
    return ConversationFile(path, hashlib.sha256(raw).hexdigest(), conversations, bad)


def refuse_bad(path: Path, bad: Sequence[BadLine], skip_bad: bool) -> None:
    """ConfigError that names the first bad lines, unless they are to be skipped."""
    if not bad or skip_bad:
        return
    lines = "; ".join(f"line {one.line}: {one.reason}" for one in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    raise ConfigError(
        f"{path} has {len(bad)} {'line' if len(bad) == 1 else 'lines'} that cannot be trained on. {lines}{more}. "
        "Correct them, or give skip_bad=true to leave them out."
    )


class _Unusable(Exception):
    """Why a line is no conversation."""


def _messages(line: bytes) -> list[Message]:
    try:
        value: Any = json.loads(line)
    except UnicodeDecodeError as error:
        raise _Unusable("not UTF-8") from error
    except RecursionError as error:
        raise _Unusable("nested too deeply") from error
    except ValueError as error:
        raise _Unusable(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _Unusable(f"must be an object such as {FORMS}")
    _refuse_unsupported(value)
    if "messages" in value:
        given = value["messages"]
        if not isinstance(given, list) or not given:
            raise _Unusable("messages must be a list with at least one message")
        return _checked([_message(message, at) for at, message in enumerate(given, start=1)])
    for asked, answered in PAIRS:
        if asked in value and answered in value:
            return _checked([*_asked(value[asked], asked), *_answered(value[answered], answered)])
    found = ", ".join(map(str, list(value)[:5])) or "nothing"
    raise _Unusable(
        f"must have messages, prompt and completion, or question and answer (has {found})"
    )


def _asked(value: Any, name: str) -> list[Message]:
    """The user's side of a pair: text, or messages already."""
    if isinstance(value, list) and value:
        return [_message(message, at) for at, message in enumerate(value, start=1)]
    return [{"role": "user", "content": _text(value, name)}]


def _answered(value: Any, name: str) -> list[Message]:
    if isinstance(value, list) and value:
        return [_message(message, at) for at, message in enumerate(value, start=1)]
    return [{"role": "assistant", "content": _text(value, name)}]


def _message(value: Any, at: int) -> Message:
    if not isinstance(value, dict):
        raise _Unusable(f"message {at} must be an object with role and content")
    _refuse_unsupported(value, f"message {at} has ")
    role = value.get("role")
    if role not in ROLES:
        raise _Unusable(f"message {at}: role must be one of {', '.join(ROLES)} (got {role!r:.40})")
    return {"role": role, "content": _text(value.get("content"), f"message {at}: content")}


def _refuse_unsupported(value: dict[str, Any], where: str = "has ") -> None:
    found = [name for name in UNSUPPORTED if value.get(name)]
    if found:
        raise _Unusable(f"{where}{found[0]}, which sft does not train on")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _Unusable(f"{name} must be text (got {type(value).__name__})")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Unusable(f"{name} has half of a surrogate pair, which is no text") from error
    return value


def answers_in(messages: Sequence[Message]) -> list[int]:
    """Where the assistant speaks; its greeting, before anything was said to it, is not asked for."""
    return [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]


def _checked(messages: list[Message]) -> list[Message]:
    """Up to the last thing the assistant says: what follows it cannot be learnt from."""
    said = answers_in(messages)
    if not said:
        raise _Unusable("has no message of the assistant after another one")
    if all(not messages[at]["content"].strip() for at in said):
        raise _Unusable("the assistant says nothing")
    return messages[: said[-1] + 1]


def keys_of(conversations: Iterable[Conversation]) -> list[str]:
    """Equal for conversations that are the same word for word."""
    return [json.dumps(one.messages, sort_keys=True) for one in conversations]
