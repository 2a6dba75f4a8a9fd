"""What a scorer may evaluate: numbers, lists and formulas, never Python that does something."""

from __future__ import annotations

import ast
import sys
from typing import Any

LONGEST = 4000  # characters
LARGEST_POWER = 64
FUNCTIONS = frozenset(
    (
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
    )
) | {"log", "ln", "sqrt"}
CONSTANTS = frozenset(("pi", "oo"))
_SHAPES = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd,
    ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift, ast.Invert,
)  # fmt: skip


def forbid_code() -> None:
    """Puts the check before every `eval` of reasoning_gym's modules and before sympy's parser."""
    import sympy
    from sympy.parsing import sympy_parser

    parse, evaluate = sympy_parser.parse_expr, eval  # the originals

    def formula(text: str, *args: Any, **kwargs: Any) -> Any:
        return parse(checked(text, formulas=True), *args, **kwargs)

    def literal(text: str, *args: Any) -> Any:
        return evaluate(checked(text, formulas=False), {"__builtins__": {}})

    sympy.parse_expr = formula  # pyright: ignore[reportPrivateImportUsage]
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            vars(module)["eval"] = literal
            if getattr(module, "parse_expr", None) is parse:
                vars(module)["parse_expr"] = formula


def checked(text: str, *, formulas: bool) -> str:
    """The text when it is a harmless expression; else ValueError or SyntaxError."""
    if len(text) > LONGEST:
        raise ValueError("too long")
    text = text.strip()
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name):
            if not formulas or not _is_symbol(node.id):
                raise ValueError("a name")
        elif isinstance(node, ast.Call):
            if not formulas or node.keywords or not isinstance(node.func, ast.Name):
                raise ValueError("a call")
        elif isinstance(node, ast.Constant):
            if formulas and not isinstance(node.value, int | float):
                raise ValueError("a text")
        elif not isinstance(node, _SHAPES):
            raise ValueError("not an expression")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            _check_power(node.right)
    return text


def _is_symbol(name: str) -> bool:
    return name in FUNCTIONS or name in CONSTANTS or (len(name) == 1 and name.isalpha())


def _check_power(exponent: ast.expr) -> None:
    """Only small numbers: a tower of powers is a number nobody can write down."""
    inner = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div | ast.Add | ast.Sub):
        _check_power(inner.left)
        _check_power(inner.right)
    elif isinstance(inner, ast.Constant):
        if not isinstance(inner.value, int | float) or abs(inner.value) > LARGEST_POWER:
            raise ValueError("a large power")
    elif not isinstance(inner, ast.Name):
        raise ValueError("a tower of powers")
