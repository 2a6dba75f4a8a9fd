"""Whatever is typed, the command line answers with a configuration or with one sentence."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.cli.config import flat, keys, parse, reproducing_command, split
from tinsmith.errors import ConfigError

NAMES = [key.name for key in keys()]
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "3",
    "1e-3",
    "nan",
    "inf",
    "true",
    "False",
    "None",
    "a,b",
    "x=y",
    "ppo",
    "--",
]
names = (
    st.sampled_from(NAMES)
    | st.sampled_from(["max_tokens", "minitb.x", "env.", "."])
    | st.text(max_size=8)
)
values = st.sampled_from(VALUES) | st.text(max_size=8)
word = st.one_of(
    st.builds("{}={}".format, names, values),
    st.builds("--{}={}".format, names.map(lambda name: name.replace("_", "-")), values),
    st.builds("--{}".format, names),
    values,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(word, max_size=4))
def test_any_words_give_a_configuration_or_a_sentence(words: list[str]) -> None:
    try:
        config = parse(words)
    except ConfigError:
        return
    values = flat(config)
    assert json.loads(json.dumps(values)) == values
    again = reproducing_command(config, words)[2:]
    changed_by_place = {"log_path": None, "dry_run": False}
    assert flat(parse(again)) == values | changed_by_place
    assert split(again) == {name: text for name, _, text in (one.partition("=") for one in again)}
