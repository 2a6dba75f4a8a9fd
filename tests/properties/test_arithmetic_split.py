"""No held-out sum was trained on, in either order, whatever the seed and the range."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tinsmith.envs.arithmetic import rows


def pairs(split):
    return {tuple(sorted(map(int, re.findall(r"\d+", row.question)))) for row in split}


@given(seed=st.integers(0, 2**32), largest=st.integers(1, 25))
def test_the_splits_are_disjoint_as_unordered_pairs_and_leave_nothing_out(seed, largest):
    train, held_out = rows(seed, largest=largest)
    assert not pairs(train) & pairs(held_out)
    assert len(train) + len(held_out) == (largest + 1) ** 2
    assert held_out
    assert train
    assert (train, held_out) == rows(seed, largest=largest)
    assert len({row.id for row in train + held_out}) == len(train) + len(held_out)
