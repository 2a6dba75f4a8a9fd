"""Answers in one way of writing: unicode to LaTeX, decoration and spacing dropped. Linear time."""

from __future__ import annotations

import re
import unicodedata

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SCRIPTS = re.compile("(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+)|[₀₁₂₃₄₅₆₇₈₉]+")
_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5),
    "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8),
    "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": "/", "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "∛": r"\sqrt[3]", "°": r"^\circ ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "φ": r"\phi ",
    "μ": r"\mu ", "σ": r"\sigma ", "ω": r"\omega ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "％": "%", "€": "", "£": "", "¥": "", "∶": ":", "’": "'", "“": '"', "”": '"',
}  # fmt: skip
_UNICODE = str.maketrans(
    _SYMBOLS | {mark: rf"\frac{{{top}}}{{{bottom}}}" for mark, (top, bottom) in _FRACTIONS.items()}
)

_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|mleft|mright)(?![A-Za-z])\.?|\\!|\\\$"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:> ]|~|\\(?:quad|qquad|thinspace)(?![A-Za-z])|\s+")
_SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:leq|leqslant)(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\neq(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\textdegree(?![A-Za-z])|\^\s?\{?\s?\\circ\s?\}?|\^\s?\{?\s?o\s?\}(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\log\s?_\s?(?:e(?![A-Za-z])|\{\s?e\s?\})"), r"\\ln "),
    (re.compile(r"\\(?:mathrm|textrm|textbf|textit|textsf|texttt|mathbf|mathit|mbox|hbox|textnormal|emph|bf|rm)\s?\{"), r"\\text{"),
    (re.compile(r"\\sqrt\s+([0-9]+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])(pi|infty|infinity)(?![A-Za-z])"), lambda m: {"pi": r"\pi "}.get(m[1], r"\infty ")),
    (re.compile(r"(?<=[0-9])\s*\*\*\s*(?=[-0-9(])"), "^"),
    (re.compile(r"\^\s?\(([^()]{1,200})\)"), r"^{\1}"),
    (re.compile(r"\\?%"), r"\\%"),
)  # fmt: skip
_WRAPPERS = ("\\boxed{", "\\fbox{", "\\text{", "{")
_TEXT = re.compile(r"\\text\s?\{([^{}]*)\}")
LONGEST = 2000  # characters; what is longer is compared as text and nothing else


def normalise(answer: str) -> str:
    """The answer without delimiters, decoration and differences of spelling."""
    text = _SCRIPTS.sub(_script, answer).translate(_UNICODE)
    text = unicodedata.normalize("NFKC", text)
    text = _SPACE.sub(" ", _DROPPED.sub("", text))
    for pattern, spelling in _SYNONYMS:
        text = pattern.sub(spelling, text)
    return _unwrapped(text)


def _script(match: re.Match[str]) -> str:
    if match["raised"]:
        return f"^{{{match[0].translate(_RAISED)}}}"
    return f"_{{{match[0].translate(_LOWERED)}}}"


def _unwrapped(text: str) -> str:
    """Without dollar signs, brackets of display, `\\boxed{}`, `\\text{}` or braces around all of it."""
    while True:
        text = text.strip(" \n$*`").removesuffix(".").removesuffix(",").removesuffix(";").strip()
        if text.startswith(("\\(", "\\[")) and text.endswith(("\\)", "\\]")):
            text = text[2:-2]
            continue
        wrapper = next((w for w in _WRAPPERS if text.startswith(w) and text.endswith("}")), None)
        if wrapper is None or not _closes_last(text, len(wrapper)):
            return text
        text = text[len(wrapper) : -1]


def _closes_last(text: str, begin: int) -> bool:
    """Whether the brace that is open at `begin` is closed by the last character and no earlier one."""
    depth, escaped = 1, False
    for at in range(begin, len(text)):
        if escaped:
            escaped = False
            continue
        escaped = text[at] == "\\"
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at == len(text) - 1
    return False


def squashed(text: str) -> str:
    """For comparison as text: no spaces but between digits, no braces around single characters."""
    return re.sub(r"\{([0-9A-Za-z])\}", r"\1", re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text))


def words(text: str) -> str:
    """For comparison of words: lower case, letters and digits only, `\\text{}` opened."""
    opened = _TEXT.sub(r" \1 ", text).casefold()
    kept = re.sub(r"[^0-9a-z\u00c0-\uffff]+", " ", opened).strip()
    return re.sub(r"^(?:the|an?) (?=.)", "", kept)
