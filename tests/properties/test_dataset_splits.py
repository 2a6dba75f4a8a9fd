"""No question is on both sides, whatever the files hold and however it is written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.envs.datasets.load import Wanted, load
from tinsmith.envs.datasets.text import same_question

words = st.text(st.sampled_from("ab AB\t\n１1\u00a0éÉ"), min_size=1, max_size=4)
rows = st.lists(
    st.fixed_dictionaries({"question": words | st.none(), "answer": st.integers(0, 9) | st.none()}),
    max_size=25,
).map(lambda some: [*some, {"question": "always there", "answer": 1}])


def keys(some):
    return [same_question(row.question) for row in some]


def put(folder: str, name: str, some) -> None:
    Path(folder, name).write_text("".join(json.dumps(row) + "\n" for row in some))


@settings(max_examples=60, deadline=None)
@given(some=rows, seed=st.integers(0, 5), held_out=st.sampled_from([0, 0.1, 0.5, 1, 3]))
def test_one_split(some, seed, held_out):
    with tempfile.TemporaryDirectory() as folder:
        put(folder, "all.jsonl", some)
        wanted = Wanted(str(Path(folder, "all.jsonl")), seed=seed, held_out=held_out)
        train, kept = load(wanted)
        assert (train, kept) == load(wanted)
    usable = {
        same_question(row["question"])
        for row in some
        if (row["question"] or "").strip() and row["answer"] is not None
    }
    assert not set(keys(train)) & set(keys(kept))
    assert sorted(keys(train) + keys(kept)) == sorted(usable)
    assert len({row.id for row in train + kept}) == len(train) + len(kept)
    assert bool(kept) is (held_out > 0)


@settings(max_examples=60, deadline=None)
@given(first=rows, second=rows, limit=st.none() | st.integers(1, 30))
def test_two_splits(first, second, limit):
    with tempfile.TemporaryDirectory() as folder:
        put(folder, "train.jsonl", [*first, {"question": "only here", "answer": 2}])
        put(folder, "test.jsonl", second)
        train, kept = load(Wanted(folder, limit=limit))
    assert not set(keys(train)) & set(keys(kept))
    assert len(set(keys(kept))) == len(kept)
    assert len(set(keys(train))) == len(train)
    assert train
    assert limit is None or len(train) <= limit
