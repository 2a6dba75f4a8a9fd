"""Which part of a reply is read as its answer, and by which rule."""

from __future__ import annotations

import pytest

from tinsmith.envs.grading.extract import extract


@pytest.mark.parametrize(
    ("reply", "text", "rule"),
    [
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}", "boxed"),
        (r"\boxed{1} then \boxed{2}", "2", "boxed"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
        (r"\fbox{7}", "7", "boxed"),
        (r"$\boxed 7$ done", "7", "boxed"),
        (r"\boxed{1} cut off \boxed{2", "1", "boxed"),
        (r"\boxed{5} #### 6", "5", "boxed"),
        ("a\n#### 72\nb", "72", "hashes"),
        ("#### 72. The answer is 73", "72. The answer is 73", "hashes"),
        ("The answer is 5. Not 6.", "5", "stated"),
        ("the final answer is: $x = 3$, I think", "x = 3", "stated"),
        ("Answer: 3 apples", "3 apples", "stated"),
        ("The answer is 25 $\\%$", "25 $\\%$", "stated"),
        ("First $$a$$ then $$b + 1$$", "b + 1", "displayed"),
        (r"\[ x = 4 \]", "x = 4", "displayed"),
        ("3/4", "3/4", "whole"),
        ("7 apples", "7 apples", "whole"),
        ("no real solution", "no real solution", "whole"),
        ("we find that $x^2$ is it", "x^2", "inline"),
        ("we find $x^2$ but then we say 12", "12", "number"),
        ("she pays $5 and he pays $7 for it", "$7", "number"),
        ("it fell from 10 to -7 degrees", "-7", "number"),
        ("he has 1,234.50 left over, I think", "1,234.50", "number"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2", "boxed"),
        ("<think>1</think>", None, None),
        ("", None, None),
        (r"5 \boxed{}", None, None),
        ("I really have no idea what this could be about", None, None),
    ],
)
def test_rules(reply: str, text: str | None, rule: str | None) -> None:
    found = extract(reply)
    if text is None:
        assert found is None
    else:
        assert found is not None
        assert (found.text, found.rule) == (text, rule)
