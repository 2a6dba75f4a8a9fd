"""Merging turns loses no sampled token, invents none, and merges whenever it may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinsmith.rl.datums import merge_turns
from tinsmith.rl.types import Action, Observation, Trajectory, Transition

tokens = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@st.composite
def conversations(draw):
    """Turns that continue the former (True) or begin with something else."""
    shown, transitions, continued = [], [], []
    for _ in range(draw(st.integers(1, 5))):
        goes_on = bool(transitions) and draw(st.booleans())
        new = draw(tokens)
        shown = shown + new if goes_on else [9, *new]  # 9 occurs nowhere else
        said = draw(tokens)
        logprobs = [-float(draw(st.integers(1, 9))) for _ in said]
        transitions.append(
            Transition(Observation(list(shown)), Action(said, logprobs, "stop"), 0.0)
        )
        continued.append(goes_on)
        shown = shown + said
    return Trajectory(transitions, "done"), continued


@given(conversations())
def test_merging(conversation):
    trajectory, continued = conversation
    sequences = merge_turns(trajectory, 1.0)
    assert len(sequences) == continued.count(False)
    sampled = [
        (token, logprob)
        for s in sequences
        for token, logprob, on in zip(s.tokens_T, s.logprobs_T, s.sampled_T, strict=True)
        if on
    ]
    said = [
        pair
        for t in trajectory.transitions
        for pair in zip(t.action.tokens_T, t.action.logprobs_T, strict=True)
    ]
    assert sampled == said
    assert all(
        logprob == 0.0
        for s in sequences
        for logprob, on in zip(s.logprobs_T, s.sampled_T, strict=True)
        if not on
    )
    ends = [t.observation.tokens_T + t.action.tokens_T for t in trajectory.transitions]
    lasts = [i for i in range(len(ends)) if i + 1 == len(ends) or not continued[i + 1]]
    assert [s.tokens_T.tolist() for s in sequences] == [ends[i] for i in lasts]
