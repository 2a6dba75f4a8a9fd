"""A rollout as people look at it in a table: short texts, one row."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinsmith.records.rollout import RolloutRecord

TEXT = 2000  # characters of a prompt or a reply
WORD = 200  # characters of an answer or a name

# Control characters but tab and line feed, line separators, and marks that reorder or hide text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


@dataclass(frozen=True)
class Sample:
    """Model-written text, bounded and without control characters, but not escaped for any markup."""

    problem: str
    member: int
    prompt: str
    reply: str
    answer: str
    expected: str
    reward: float | None
    advantage: float | None
    ended: str  # why it ended, or the error that broke it off


def to_sample(record: RolloutRecord) -> Sample:
    """The first prompt, all that came after it, and the last answer that was noted."""
    texts = [str(turn.get("text", "")) for turn in record.turns]
    logs = [turn.get("logs", {}) for turn in record.turns]
    return Sample(
        problem=shorten(record.problem_id, WORD),
        member=record.member,
        prompt=shorten(texts[0] if texts else "", TEXT),
        reply=shorten("\n".join(texts[1:]), TEXT),
        answer=shorten(_last(logs, "answer"), WORD),
        expected=shorten(_last(logs, "expected"), WORD),
        reward=record.reward,
        advantage=record.advantage,
        ended=shorten(record.error or record.stop_reason or "", WORD),
    )


def shorten(text: str, most: int) -> str:
    """Harmless characters only; of a long text the beginning and the end, where answers stand."""
    text = text.encode("utf-8", errors="replace").decode("utf-8")  # a lone surrogate cannot be sent
    text = _UNSAFE.sub("", text.replace("\r\n", "\n"))
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end]} … {text[-end:]}"


def _last(logs: list[dict[str, str]], name: str) -> str:
    return next((str(log[name]) for log in reversed(logs) if log.get(name) is not None), "")
