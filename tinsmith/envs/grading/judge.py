"""Algebra: whether two LaTeX expressions are the same. Slow and easily stuck, so it runs in workers only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig
from latex2sympy2_extended.sets import FiniteSet
from math_verify import parser as latex_parser
from math_verify.grader import is_assignment_relation, is_relation, take_last_relation
from sympy.parsing import sympy_parser

from tinsmith.envs.grading.plain import ROUNDABLE_DIGITS, Plain, plain

DIGITS = 50  # of a number's value; two exact numbers agree when they agree this far, less a few
AGREE = sympy.Float(10) ** -(DIGITS - 12)
NOTHING = sympy.Float("1e-60")  # what cancels leaves a trace far below this
RELATIVE = sympy.Float("1e-6")
POINTS = 4  # where expressions in variables are compared
MANY = 24  # members of a set up to which they are matched one by one
RECURSION = 3000

# What sympy raises on expressions that it cannot evaluate. Anything else ends the worker, which is replaced.
TROUBLE = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
_LATEX = math_verify.LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
)
_DEGREES = re.compile(r"([0-9.]+)\s?\^\\circ")
_IN_RADIANS = r"(\1\\cdot\\frac{\\pi}{180})"
_NUMERAL = re.compile(r"[-+]?[0-9]{1,40}(?:[./][0-9]{1,40})?")


_WARM_UP = (
    (r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"),
    ("1<x<2", "[1,2]"),
    ("x^2=4", "x+y=2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\x\end{pmatrix}"),
    (r"\int_0^1 x\,dx", r"\sum_{k=1}^{3}\frac{1}{k}"),
    (r"\sin x", r"\log_2 8"),
    (r"(-\infty,1)\cup(2,\infty)", r"\mathbb{R}"),
)


def prepare() -> Callable[[tuple[str, str]], bool]:
    """Makes the process ready, and returns what answers questions in it."""
    warm_up()
    forbid_eval()
    sys.setrecursionlimit(RECURSION)
    return _answer


def _answer(question: tuple[str, str]) -> bool:
    try:
        return bool(judge(*question))
    except TROUBLE:
        return False


def warm_up() -> None:
    """Loads what sympy loads late; some of it reads its own names through `sympify`."""
    for answer, expected in _WARM_UP:
        judge(answer, expected)
    math_verify.verify(sympy.Symbol("x") ** 2 - 1, sympy.Symbol("x") + 1, timeout_seconds=0)


def forbid_eval() -> None:
    """Closes sympy's one way from text to Python's eval; numerals, which sympy itself reads so, stay.

    LaTeX is read by a grammar. The expressions that math-verify would give to `parse_expr` are never
    asked for (only its LaTeX rules are used), and sympy's `sympify` of a string ends here as well.
    """
    original = sympy_parser.parse_expr

    def numerals_only(text: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(text, str) and _NUMERAL.fullmatch(text):
            return original(text)
        raise ValueError("only numerals are read as Python")

    for module in (sympy_parser, sympy.parsing, sympy, latex_parser):
        module.parse_expr = numerals_only  # pyright: ignore[reportAttributeAccessIssue]


def judge(answer: str, expected: str) -> bool:
    """Whether the answer is equivalent to the expected expression."""
    given, wanted = parsed(answer), parsed(expected)
    if given is None or wanted is None:
        return False
    return same(given, wanted, plain(expected))


def parsed(latex: str) -> Any:
    """The expression that the LaTeX means, or None."""
    found = math_verify.parse(
        f"${_DEGREES.sub(_IN_RADIANS, latex)}$",
        extraction_config=[_LATEX],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=0,
    )
    return found[0] if found else None


def same(given: Any, wanted: Any, precision: Plain | None = None) -> bool:
    given, wanted = _as_sets(*_without_names(_standard(given), _standard(wanted)))
    if given == wanted:
        return True
    if isinstance(wanted, sympy.Interval) and isinstance(given, sympy.Interval):
        return (
            given.left_open == wanted.left_open
            and given.right_open == wanted.right_open
            and same(given.start, wanted.start)
            and same(given.end, wanted.end)
        )
    if isinstance(given, sympy.MatrixBase) and isinstance(wanted, sympy.MatrixBase):
        return given.shape == wanted.shape and _in_order(_cells(given), _cells(wanted))
    ours, theirs = _members(given), _members(wanted)
    if ours and theirs:
        if isinstance(given, sympy.Set) and isinstance(wanted, sympy.Set):
            return _in_any_order(ours, theirs)
        return _in_order(ours, theirs)
    for one, other in ((ours, wanted), (theirs, given)):
        if one is not None and len(one) == 1 and isinstance(other, sympy.Expr):
            return same(one[0], wanted if one is ours else given)
    if isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr):
        decided = _same_value(given, wanted, precision)
        if decided is not None:
            return decided
    return _verified(given, wanted)


def _without_names(given: Any, wanted: Any) -> tuple[Any, Any]:
    """`x = 5` as 5 when the other side has no equation; `x \\in S` is read as an equation too."""
    if is_assignment_relation(given) and not is_relation(wanted):
        return take_last_relation(given).rhs, wanted
    if is_assignment_relation(wanted) and not is_relation(given):
        return given, take_last_relation(wanted).rhs
    both = (given, wanted)
    if all(isinstance(side, sympy.Eq) for side in both) and given.lhs == wanted.lhs:
        return given.rhs, wanted.rhs
    return both


def _standard(value: Any) -> Any:
    """One kind of symbols, and `i` as the imaginary unit: the parser's kinds depend on the whole text."""
    if not isinstance(value, sympy.Expr):
        return value
    kinds: dict[Any, Any] = {}
    for symbol in value.atoms(sympy.Symbol):
        name = symbol.name
        kinds[symbol] = sympy.I if name == "i" else sympy.Symbol(name, real=True)
    return value.xreplace(kinds)


def _as_sets(given: Any, wanted: Any) -> tuple[Any, Any]:
    """`1 < x < 2` as an interval when the other side is a set; `x < 1 or x > 2` as a union."""
    if _inequality(given) and _continuous(wanted):
        return _solutions(given), wanted
    if _inequality(wanted) and _continuous(given):
        return given, _solutions(wanted)
    if _inequality(given) and _inequality(wanted):
        names = given.free_symbols | wanted.free_symbols
        if len({name.name for name in names}) == 1 and len(given.free_symbols) == 1:
            return _solutions(given), _solutions(wanted)
    return given, wanted


def _continuous(value: Any) -> bool:
    return isinstance(value, sympy.Set) and not isinstance(value, sympy.FiniteSet)


def _inequality(value: Any) -> bool:
    if isinstance(value, sympy.FiniteSet):
        return all(_inequality(part) for part in value.args)
    return is_relation(value) and not isinstance(value, sympy.Eq | sympy.Ne)


def _solutions(relation: Any) -> Any:
    parts: Any = relation.args
    try:
        if isinstance(relation, sympy.FiniteSet):
            return sympy.Union(*(part.as_set() for part in parts))
        return relation.as_set()
    except TROUBLE:
        return relation


def _members(value: Any) -> list[Any] | None:
    """The parts of a tuple, finite set, vector or pair (which reads as an open interval)."""
    if isinstance(value, FiniteSet):
        return list(getattr(value, "_unsorted_args"))  # noqa: B009  as they were written
    if isinstance(value, sympy.Tuple | sympy.FiniteSet):
        return list(value.args)
    if isinstance(value, sympy.Interval) and value.left_open and value.right_open:
        return [value.start, value.end]
    if isinstance(value, sympy.MatrixBase) and 1 in value.shape:
        return _cells(value)
    return None


def _cells(matrix: Any) -> list[Any]:
    return list(matrix.flat())


def _in_order(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def _in_any_order(ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) != len(theirs) or len(ours) > MANY:
        return False
    left = list(theirs)
    for member in ours:
        found = next((at for at, other in enumerate(left) if same(member, other)), None)
        if found is None:
            return False
        left.pop(found)
    return True


def _same_value(given: Any, wanted: Any, precision: Plain | None) -> bool | None:
    """Numbers by their value, expressions in variables by their values at some points; None: unknown."""
    symbols = sorted(given.free_symbols | wanted.free_symbols, key=str)
    try:
        if not symbols:
            return _close(given, wanted, precision)
        return _same_at_points(given, wanted, symbols)
    except TROUBLE:
        return None


def _close(given: Any, wanted: Any, precision: Plain | None) -> bool | None:
    ours, theirs = _value(given), _value(wanted)
    if ours is None or theirs is None:
        return None
    gap = abs(ours - theirs)
    size = max(abs(theirs), NOTHING)
    if gap <= AGREE * size:
        return True
    rough, target_rough = given.has(sympy.Float), wanted.has(sympy.Float)
    if rough and gap <= sympy.Float("1e-12") * size:
        return True
    if target_rough:
        digits, step = _written(wanted, precision)
        if not rough and digits >= ROUNDABLE_DIGITS:
            return bool(gap <= step / 2)
        return not rough and bool(gap <= RELATIVE * size)
    whole = abs(theirs - sympy.floor(sympy.re(theirs) + sympy.S.Half)) <= AGREE * size
    return rough and not whole and bool(gap <= RELATIVE * size)


def _written(wanted: Any, precision: Plain | None) -> tuple[int, Any]:
    """Significant digits and unit of the last digit of an expected decimal."""
    if precision is not None and precision.step is not None:
        step: Fraction = precision.step
        return precision.digits, sympy.Rational(step.numerator, step.denominator)
    number = next(iter(wanted.atoms(sympy.Float)))
    shown = f"{float(number):.15g}"
    decimals = len(shown.partition(".")[2])
    if "e" in shown or wanted.args or not decimals:
        return 0, sympy.Integer(0)
    return len(shown.replace(".", "").replace("-", "").lstrip("0")), sympy.Rational(1, 10**decimals)


def _value(expression: Any) -> Any:
    """The number that an expression without variables is, to many digits, or None."""
    exact = _exact(expression)
    for attempt in (lambda: exact, exact.doit):  # sums and integrals may need the second
        value = attempt().evalf(DIGITS)
        if (
            value.is_number
            and value.is_finite
            and all(p.is_Float or p.is_Integer or p.is_Rational for p in value.as_real_imag())
        ):
            return value
    return None


def _exact(expression: Any) -> Any:
    """Decimals as the fractions that they are as written."""
    decimals = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    return expression.xreplace(decimals) if decimals else expression


def _same_at_points(given: Any, wanted: Any, symbols: list[Any]) -> bool | None:
    """None when too few points can be evaluated to be sure."""
    if (
        given.free_symbols != wanted.free_symbols
        and len(given.free_symbols ^ wanted.free_symbols) > 2
    ):
        return False
    given, wanted = _exact(given), _exact(wanted)
    met = 0
    for point in _points(len(symbols)):
        place = dict(zip(symbols, point, strict=True))
        ours, theirs = _value(given.subs(place)), _value(wanted.subs(place))
        if ours is None or theirs is None:
            continue
        if abs(ours - theirs) > sympy.Float("1e-20") * max(abs(ours), abs(theirs), NOTHING):
            return False
        met += 1
    return True if met >= POINTS - 1 else None


@lru_cache(maxsize=32)
def _points(count: int) -> list[list[Any]]:
    """Fixed numbers without pattern, positive and negative."""
    state, numbers = 20250711, []
    for _ in range(POINTS * count):
        state = (1103515245 * state + 12345) % 2**31
        numbers.append(sympy.Rational(state % 4001 + 307, 1009))
    rows = [numbers[at * count : (at + 1) * count] for at in range(POINTS)]
    return [[-n if row % 2 else n for n in numbers] for row, numbers in enumerate(rows)]


def _verified(given: Any, wanted: Any) -> bool:
    return math_verify.verify(
        wanted, given, timeout_seconds=0, allow_set_relation_comp=True, raise_on_error=False
    )
