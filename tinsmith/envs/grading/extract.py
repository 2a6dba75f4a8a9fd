"""Which part of a reply is its answer; every rule takes time linear in the reply's length.

What follows the last `</think>` counts, if there is one. In it, the first of these that finds something:
the last `\\boxed{...}`, the last `#### ...`, the last "answer is ..." or "answer: ...", the last displayed
formula, a reply that is nothing but an answer, and at last the inline formula or the number that ends
latest.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

Rule: TypeAlias = Literal["boxed", "hashes", "stated", "displayed", "whole", "inline", "number"]

END_OF_THOUGHT = "</think>"
BARE_BOX = 60  # characters: `\boxed 5` without braces ends at a space, or here
SHORT_REPLY = 120  # characters: a longer reply is not taken for an answer as a whole
SHORT_WORDS = 5
STATED_WORDS = 6  # a longer phrase after "the answer is" is searched for its last formula or number


@dataclass(frozen=True)
class Extract:
    text: str
    rule: Rule


# A minus belongs to the number unless it stands between two terms, as in 90-6.
NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-+])?[$€£]?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,4}(?![0-9A-Za-z]))?"
    r"(?:/[0-9]+(?![0-9.]))?(?:\\?%)?"
)
_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t]{0,8}\{|\\(?:boxed|fbox)(?![A-Za-z{])|\\[^a-zA-Z]|[{}]")
_STATED = re.compile(
    r"answer\**[ \t]{0,4}"
    r"(?:(?:is|are|equals|would be|must be|=)(?![A-Za-z])[ \t]{0,4}\**[ \t]{0,4}:?|:)\**",
    re.IGNORECASE,
)
_DISPLAYED = re.compile(r"\$\$|\\\[|\\\]")
_INLINE = re.compile(r"(?<!\\)\$(?!\$)|\\\(|\\\)|\n")
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox)\s?\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_REASON = re.compile(r",? (?:because|since|as|so|which|where|for) ", re.IGNORECASE)
_MINUS = str.maketrans({"−": "-", "–": "-", "％": "%", "\u00a0": " ", "\u202f": " ", "\u2009": " "})


def extract(reply: str) -> Extract | None:
    """The answer in a reply, or None when it has none."""
    text = reply.rpartition(END_OF_THOUGHT)[2].translate(_MINUS).strip()
    for rule in (_boxed, _hashes, _stated, _displayed, _whole, _latest):
        found = rule(text)
        if found is not None:
            return found if found.text else None
    return None


def _boxed(text: str) -> Extract | None:
    """The last box that is closed; an empty one is an answer left out, not a reason to look further."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    opened: list[
        int
    ] = []  # where the content of each open brace begins, negative when it is no box
    last: str | None = None
    for token in _BRACES.finditer(text):
        word = token.group()
        if word == "}":
            begin = opened.pop() if opened else -1
            last = text[begin : token.start()] if begin >= 0 else last
        elif word.endswith("{") and len(word) != 2:
            opened.append(token.end() if len(word) > 1 else -1)
        elif len(word) > 2:  # a box without braces
            rest = text[token.end() : token.end() + BARE_BOX].split(maxsplit=1)
            last = re.split(r"[$\n]|\\\)|\\\]", rest[0])[0] if rest else ""
    return None if last is None else Extract(last.strip(), "boxed")


def _hashes(text: str) -> Extract | None:
    at = text.rfind("####")
    if at < 0:
        return None
    return Extract(text[at:].lstrip("#").strip().partition("\n")[0].strip(), "hashes")


def _stated(text: str) -> Extract | None:
    last = _last(_STATED, text)
    if last is None:
        return None
    rest = text[last.end() :].strip().lstrip("*").strip()
    formula = re.match(r"\$\$?([^$]{1,2000})\$|\\[\[(](.{1,2000}?)\\[\])]", rest, re.DOTALL)
    if formula:
        tail = re.match(r"\$?[ ]?(\\?%)?", rest[formula.end() :])
        return Extract(
            (formula.group(1) or formula.group(2)).strip() + (tail.group(1) or "" if tail else ""),
            "stated",
        )
    end = _SENTENCE_END.search(rest)
    phrase = _REASON.split(rest[: end.start()] if end else rest, maxsplit=1)[0].strip(" *_`\"'")
    wordy = len(_WORD.findall(_COMMAND.sub("", phrase))) > STATED_WORDS
    if wordy or (_WORD.match(phrase) and re.search(r"[0-9]", phrase)):
        inside = _latest(phrase)
        return Extract(inside.text, "stated") if inside else None
    return Extract(phrase, "stated") if phrase else None


def _displayed(text: str) -> Extract | None:
    last, begin, dollars = None, -1, False
    for token in _DISPLAYED.finditer(text):
        word = token.group()
        if begin >= 0 and word == ("$$" if dollars else "\\]"):
            last, begin = text[begin : token.start()].strip() or last, -1
        elif begin < 0 and word != "\\]":
            begin, dollars = token.end(), word == "$$"
    return Extract(last, "displayed") if last else None


def _whole(text: str) -> Extract | None:
    """A reply without a sentence around its answer: a formula, a number with its unit, a few words."""
    if not text or len(text) > SHORT_REPLY or "\n" in text:
        return None
    words = len(_WORD.findall(_COMMAND.sub("", text)))
    digits = re.search(r"[0-9]", text)
    if words > (1 if digits else SHORT_WORDS) or not re.search(r"[A-Za-z0-9]", text):
        return None
    if digits and _WORD.match(text):  # a sentence begins
        return None
    return Extract(text.strip("*_` ").removesuffix(".").removesuffix("!").strip(), "whole")


def _latest(text: str) -> Extract | None:
    """The last inline formula, unless a number stands after it."""
    formula, begin, closing, end = None, -1, "", -1
    for token in _INLINE.finditer(text):
        word = token.group()
        if begin >= 0 and word == closing:
            inside = text[begin : token.start()].strip()
            prose = len(_WORD.findall(_COMMAND.sub("", inside)))
            if inside and prose == 0:
                formula, end, begin = inside, token.end(), -1
            else:  # two prices, not a formula: the second sign may open one
                begin = token.end() if word == "$" else -1
        elif word in ("$", "\\("):
            begin, closing = token.end(), "$" if word == "$" else "\\)"
        else:
            begin = -1
    number = _last(NUMBER, text, max(end, 0))
    if number is not None:
        return Extract(number.group(), "number")
    return Extract(formula, "inline") if formula else None


def _last(pattern: re.Pattern[str], text: str, begin: int = 0) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, begin), maxlen=1)
    return found[0] if found else None
