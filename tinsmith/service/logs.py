"""Structured logs: one line an event, as text or JSON, with the id of the request it belongs to."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TextIO, TypeAlias

Format: TypeAlias = Literal["text", "json"]

LONGEST = 200  # characters of anything a client chose
_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_SECRET = re.compile(r"\b(tml-|eyJ)[A-Za-z0-9_.-]{8,}")
# What a line may say besides its message: attributes of a request that name things, never contents.
_NAMED = {
    "session_id": "session",
    "model_id": "model",
    "sampling_session_id": "sampler",
    "request_id": "future",
}
_EXTRA = ("method", "route", "status", "seconds", "session", "model", "sampler", "future")


@dataclass
class RequestFacts:
    """What is known of the request being answered."""

    id: str
    owner: str | None = None
    session: str | None = None
    model: str | None = None
    sampler: str | None = None
    future: str | None = None


REQUEST: ContextVar[RequestFacts | None] = ContextVar("tinsmith_request", default=None)


# An id is no secret, and asking the system for randomness at every request is felt.
_IDS = random.Random()


def request_id(given: bytes | None) -> str:
    """The client's own id if it is one, else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_IDS.getrandbits(64):016x}"


def note(asked: Any) -> None:
    """Remembers which session, model, sampler or future a request names."""
    facts = REQUEST.get()
    if facts is None:
        return
    for attribute, name in _NAMED.items():
        value = getattr(asked, attribute, None)
        if isinstance(value, str):
            setattr(facts, name, value[:LONGEST])


def set_up(form: Format, level: str, stream: TextIO | None = None) -> None:
    """Every logger of the process writes lines of this form, from this level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries only what matters
    logging.getLogger("tinsmith").setLevel(level.upper())


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says besides time, level and message; the record's own words win."""
    facts: dict[str, Any] = {}
    request = REQUEST.get()
    if request is not None:
        facts["request_id"] = request.id
        for name in ("owner", *_NAMED.values()):
            if (value := getattr(request, name)) is not None:
                facts[name] = value
    for name in _EXTRA:
        if (value := getattr(record, name, None)) is not None:
            facts[name] = value
    return facts


def _without_secrets(text: str) -> str:
    return _SECRET.sub(r"\1[hidden]", text)


class JsonLines(logging.Formatter):
    """One JSON object a line; a traceback is its `error`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _without_secrets(json.dumps(line, default=str))


class TextLines(logging.Formatter):
    """time LEVEL message key=value ...; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={_word(value)}" for name, value in _facts(record).items())
        line = f"{_when(record)} {record.levelname:<7} {_one_line(record.getMessage())}"
        line = f"{line} {facts}" if facts else line
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return _without_secrets(line)


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    """Nothing a client sent may end a line or move a terminal's cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _word(value: object) -> str:
    text = _one_line(f"{value:.4g}" if isinstance(value, float) else str(value))
    return json.dumps(text, ensure_ascii=False) if " " in text or '"' in text else text
