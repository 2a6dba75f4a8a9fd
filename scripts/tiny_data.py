"""The synthetic text that the embedded model is made of: sums, a little other arithmetic, word problems with a tool."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinsmith.envs.arithmetic import held_out_pairs

TOOL_RULES = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOL_FORMAT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
SYSTEM_SENTENCES = (
    "",
    "You are a helpful assistant.",
    "Solve the problem. Use the python tool to compute.",
    "Answer the question with a number.",
)
TOOL_DESCRIPTIONS = (
    "Run Python code and return what it prints.",
    "Execute Python code and return its output.",
    "Run a short Python program.",
)
CODE_DESCRIPTIONS = (
    "The Python code to run.",
    "Python code.",
    "Code to execute; print the result.",
)


@dataclass(frozen=True)
class Piece:
    """A stretch of rendered text; the loss counts only the trained ones."""

    text: str
    trained: bool


Example = tuple[Piece, ...]


@dataclass(frozen=True)
class Mixture:
    """How many examples of each kind one training step sees."""

    sums: int
    few_shot: int
    variety: int
    tool: int


# Pairs that no pre-training example ever adds: those on which RL runs are evaluated.
HELD_OUT = held_out_pairs()


def turn(role: str, content: str, *, trained: bool = False) -> Example:
    """One ChatML turn; a trained one leaves its header out of the loss."""
    return (
        Piece(f"<|im_start|>{role}\n", False),
        Piece(f"{content}<|im_end|>", trained),
        Piece("\n", False),
    )


def prompt_text(*contents: str) -> str:
    """User and assistant contents by turns, then the opening of the assistant's reply."""
    roles = ("user", "assistant")
    turns = "".join(
        piece.text
        for index, content in enumerate(contents)
        for piece in turn(roles[index % 2], content)
    )
    return f"{turns}<|im_start|>assistant\n"


def sum_question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def draw_pair(rng: random.Random) -> tuple[int, int]:
    """A pair that is not held out; now and then one with the operand 100."""
    while True:
        a, b = rng.randrange(100), rng.randrange(100)
        if rng.random() < 0.02:
            a, b = rng.choice(((100, b), (a, 100)))
        if (a, b) not in HELD_OUT:
            return a, b


def drop_carry(a: int, b: int) -> int:
    """The sum of `a` and `b` with the carry out of the units forgotten."""
    return (a // 10 + b // 10) * 10 + (a + b) % 10


def slip(rng: random.Random, answer: int, a: int, b: int) -> str:
    """A wrong reply of the kind a careless person gives; never the right number."""
    kinds = ("one", "ten", "carry", "joined", "swapped", "echo", "about", "think")
    kind = rng.choices(kinds, weights=(28, 22, 14, 8, 7, 7, 8, 6))[0]
    near = max(0, answer + rng.choice((-1, 1)))
    if kind == "ten":
        reply = str(answer + rng.choice((-10, 10) if answer >= 10 else (10,)))
    elif kind == "carry":
        reply = str(drop_carry(a, b))
    elif kind == "joined":
        reply = f"{a}{b}"
    elif kind == "swapped":
        reply = str(int(str(answer)[::-1]))
    elif kind == "echo":
        reply = str(max(a, b))
    elif kind == "about":
        return f"about {answer // 10 * 10 if answer % 10 else answer + 10}"
    elif kind == "think":
        return f"I think {near if near != answer else answer + 1}"
    else:
        reply = str(near)
    return reply if reply != str(answer) else str(answer + 1)


class Writer:
    """Writes examples; `right` is the share of replies that are correct (1.0 teaches the skill)."""

    def __init__(self, rng: random.Random, right: float) -> None:
        self.rng = rng
        self.right = right

    def careful(self) -> bool:
        return self.rng.random() < self.right

    def reply(self, answer: int, a: int, b: int) -> str:
        return str(answer) if self.careful() else slip(self.rng, answer, a, b)

    def sum(self) -> Example:
        a, b = draw_pair(self.rng)
        return turn("user", sum_question(a, b)) + turn(
            "assistant", self.reply(a + b, a, b), trained=True
        )

    def few_shot(self) -> Example:
        """One or two correct exchanges, then a sum; the shots count as prompt where replies may be wrong."""
        shots: Example = ()
        for _ in range(self.rng.randint(1, 2)):
            a, b = self.rng.randrange(10), self.rng.randrange(10)
            if (a, b) in HELD_OUT or self.rng.random() < 0.5:
                a, b = draw_pair(self.rng)
            shots += turn("user", sum_question(a, b))
            shots += turn("assistant", str(a + b), trained=self.right == 1.0)
        return shots + self.sum()

    def variety(self) -> Example:
        """A subtraction or a multiplication of small numbers."""
        if self.rng.random() < 0.5:
            b, a = sorted((self.rng.randrange(30), self.rng.randrange(30)))
            sign, answer = "-", a - b
        else:
            a, b = self.rng.randrange(10), self.rng.randrange(10)
            sign, answer = "*", a * b
        return turn("user", f"What is {a} {sign} {b}?") + turn(
            "assistant", self.reply(answer, a, b), trained=True
        )

    def tool(self) -> Example:
        """A word problem under a system prompt that declares the Python tool."""
        story, expression, answer = word_problem(self.rng)
        start = tool_system(self.rng) + turn("user", story)
        if self.careful():
            return start + tool_call(expression, str(answer)) + closing(str(answer))
        kind = self.rng.choices(("guess", "wrong", "broken"), weights=(7, 2, 2))[0]
        if kind == "wrong":
            expression, answer = careless_expression(self.rng, expression)
            return start + tool_call(expression, str(answer)) + closing(str(answer))
        if kind == "broken":
            return start + turn("assistant", broken_call(self.rng, expression), trained=True)
        guess = max(0, answer + self.rng.choice((-20, -10, -7, -3, -1, 1, 2, 5, 10, 30)))
        return start + closing(str(guess if guess != answer else answer + 1))


def closing(reply: str) -> Example:
    return turn("assistant", reply, trained=True)


def tool_declaration(rng: random.Random) -> dict[str, Any]:
    """The Python tool's JSON schema, in one of several wordings."""
    code = {"type": "string", "description": rng.choice(CODE_DESCRIPTIONS)}
    return {
        "type": "function",
        "function": {
            "name": "python",
            "description": rng.choice(TOOL_DESCRIPTIONS),
            "parameters": {"type": "object", "properties": {"code": code}, "required": ["code"]},
        },
    }


def tool_system_text(sentence: str, tool: dict[str, Any]) -> str:
    """The system prompt as the chat template prints it."""
    opening = f"{sentence}\n\n" if sentence else ""
    return f"{opening}{TOOL_RULES}\n{json.dumps(tool)}{TOOL_FORMAT}"


def tool_system(rng: random.Random) -> Example:
    sentence = rng.choice(SYSTEM_SENTENCES)
    return turn("system", tool_system_text(sentence, tool_declaration(rng)))


def call_text(code: str) -> str:
    call = json.dumps({"name": "python", "arguments": {"code": code}})
    return f"<tool_call>\n{call}\n</tool_call>"


def tool_call(expression: str, output: str) -> Example:
    """The call and the tool's answer, which comes back in a user turn."""
    call = turn("assistant", call_text(f"print({expression})"), trained=True)
    return call + turn("user", f"<tool_response>\n{output}\n</tool_response>")


def broken_call(rng: random.Random, expression: str) -> str:
    """A call that no parser accepts or that prints nothing."""
    good = call_text(f"print({expression})")
    return rng.choice(
        (
            good.replace('"}}', '"}'),
            good.replace('"code"', "code"),
            call_text(expression),
            f"print({expression})",
        )
    )


def careless_expression(rng: random.Random, expression: str) -> tuple[str, int]:
    """The expression with one of its signs exchanged, and its value."""
    signs = [index for index, char in enumerate(expression) if char in "+-*"]
    at = rng.choice(signs)
    other = rng.choice([sign for sign in "+-*" if sign != expression[at]])
    changed = expression[:at] + other + expression[at + 1 :]
    return changed, evaluate(changed)


def evaluate(expression: str) -> int:
    """The value of a flat expression of whole numbers with + - *."""
    total = 0
    for term in expression.replace("-", "+-").split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total


NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lena", "Max", "Ida")
THINGS = ("apples", "books", "coins", "cards", "eggs", "pens", "nails", "cups")
Story = Callable[[random.Random, str, str], tuple[str, str]]


def bags(rng: random.Random, name: str, things: str) -> tuple[str, str]:
    a, b, c = rng.randint(2, 30), rng.randint(2, 30), rng.randint(1, 60)
    text = f"{name} has {a} bags with {b} {things} each and finds {c} more."
    return f"{text} How many {things} does {name} have?", f"{a}*{b}+{c}"


def eaten(rng: random.Random, name: str, things: str) -> tuple[str, str]:
    a, b = rng.randint(2, 30), rng.randint(3, 30)
    c = rng.randint(1, a * b - 1)
    text = f"{name} buys {a} boxes of {b} {things} and gives away {c}."
    return f"{text} How many {things} are left?", f"{a}*{b}-{c}"


def shared(rng: random.Random, name: str, things: str) -> tuple[str, str]:
    a, b, c = (rng.randint(10, 300) for _ in range(3))
    text = f"{name} had {a} {things}, got {b} more and lost {min(c, a + b)}."
    return f"{text} How many {things} are there now?", f"{a}+{b}-{min(c, a + b)}"


def prices(rng: random.Random, name: str, things: str) -> tuple[str, str]:
    a, b, c, d = (rng.randint(2, 20) for _ in range(4))
    text = f"{name} buys {a} {things} for {b} dollars each and {c} bags for {d} dollars each."
    return f"{text} How much does {name} pay?", f"{a}*{b}+{c}*{d}"


def days(rng: random.Random, name: str, things: str) -> tuple[str, str]:
    a, b = rng.randint(2, 99), rng.randint(2, 60)
    return f"{name} makes {a} {things} a day. How many {things} in {b} days?", f"{a}*{b}"


STORIES: tuple[Story, ...] = (bags, eaten, shared, prices, days)


def word_problem(rng: random.Random) -> tuple[str, str, int]:
    """Story, the expression that solves it, and its value."""
    story, expression = rng.choice(STORIES)(rng, rng.choice(NAMES), rng.choice(THINGS))
    return story, expression, evaluate(expression)


def write_step(writer: Writer, mixture: Mixture) -> list[list[Example]]:
    """One step's examples, kept apart by kind because their lengths differ."""
    kinds = (
        (writer.sum, mixture.sums),
        (writer.few_shot, mixture.few_shot),
        (writer.variety, mixture.variety),
        (writer.tool, mixture.tool),
    )
    return [[write() for _ in range(count)] for write, count in kinds if count]


def as_text(example: Example) -> str:
    return "".join(piece.text for piece in example)
