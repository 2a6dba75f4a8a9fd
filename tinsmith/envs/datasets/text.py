"""Values of columns as text: questions without what was put around them, answers without their working."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from typing import Any

_BRACES = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\\boxed\s+([^\s${}]+)")
# Around the questions of DAPO-Math-17k: an instruction before a blank line, a reminder after one.
_BEFORE = "Solve the following math problem step by step."
_AFTER = "\n\nRemember to put your answer on its own line after"


def field(row: dict[str, Any], column: str) -> Any:
    """The value of a column; `a.b` is the field b of the column a. None when it is not there."""
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text(value: Any) -> str:
    """A value as text: of a conversation its last question, of a list its first entry; empty for none."""
    if isinstance(value, list):
        if value and all(isinstance(turn, dict) and "content" in turn for turn in value):
            asked = [turn["content"] for turn in value if turn.get("role", "user") == "user"]
            return text(asked[-1]) if asked else ""
        return text(value[0]) if value else ""
    if value is None or isinstance(value, dict):
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value).strip()


def plain(value: str) -> str:
    return value


def after_hashes(value: str) -> str | None:
    """What follows the last `####`, where GSM8K has the answer; thousands without their commas."""
    _, hashes, answer = value.rpartition("####")
    return answer.strip().replace(",", "") if hashes else None


def last_boxed(value: str) -> str | None:
    """What the last `\\boxed{...}` of a solution holds."""
    opened: list[int] = []  # where the content of each open brace begins, -1 when it is no box
    last = None
    for token in _BRACES.finditer(value):
        word = token.group()
        if word == "}":
            begin = opened.pop() if opened else -1
            last = value[begin : token.start()] if begin >= 0 else last
        elif word == "{":
            opened.append(-1)
        elif word.endswith("{") and len(word) > 2:
            opened.append(token.end())
    if last is None:
        bare = _BARE.findall(value)
        last = bare[-1] if bare else None
    return last.strip() if last is not None else None


def final_answer(value: str) -> str | None:
    """The answer of a column that may hold a whole solution: after `####`, in the last box, or all of it."""
    if "####" in value:
        return after_hashes(value)
    return last_boxed(value) if "\\boxed" in value else value


def without_role(value: str) -> str:
    """A question that is written as a turn, `user: ...`."""
    return value.removeprefix("user:").strip()


def without_wrapper(value: str) -> str:
    """A question without DAPO's instructions, which ask for another form of answer."""
    if value.startswith(_BEFORE) and "\n\n" in value:
        value = value.split("\n\n", 1)[1]
    return value.split(_AFTER, 1)[0].strip()


def simple(name: str) -> str:
    """`Counting & Probability` as `counting_and_probability`: how parts of a dataset are named."""
    return "_".join(re.findall(r"[^\W_]+", name.lower().replace("&", " and ")))


def same_question(question: str) -> str:
    """A digest that questions share when they differ only in case, spacing or forms of a letter."""
    normal = "".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.sha256(normal.encode("utf-8", "surrogatepass")).hexdigest()
