"""Training data: shifted by one, nothing at prompt positions, continued turns in one sequence."""

from __future__ import annotations

import numpy as np

from tinsmith.rl.advantages import advantages_of, centred
from tinsmith.rl.datums import merge_turns, to_sequences
from tinsmith.rl.types import Action, Observation, Trajectory, TrajectoryGroup, Transition


def transition(shown, said, logprobs=None, reward=0.0, version=0):
    action = Action(said, logprobs or [-0.5] * len(said), "stop", version)
    return Transition(Observation(shown), action, reward)


def group(*trajectories):
    count = len(trajectories)
    return TrajectoryGroup("p", list(trajectories), [0.0] * count, [{} for _ in range(count)])


def test_one_turn_is_shifted_and_masked():
    trajectory = Trajectory([transition([10, 11, 12], [20, 21], [-0.1, -0.2])], "done")
    (sequence,) = to_sequences(group(trajectory), [0.75])
    datum = sequence.datum()
    inputs = {name: value.to_numpy() for name, value in datum.loss_fn_inputs.items()}
    assert datum.model_input.to_ints() == [10, 11, 12, 20]
    assert inputs["target_tokens"].tolist() == [11, 12, 20, 21]
    np.testing.assert_allclose(inputs["logprobs"], [0, 0, -0.1, -0.2], rtol=1e-6)
    np.testing.assert_allclose(inputs["advantages"], [0, 0, 0.75, 0.75])
    assert inputs["target_tokens"].dtype == np.int64
    assert inputs["advantages"].dtype == np.float32


def test_a_turn_that_continues_the_former_shares_its_sequence():
    first = transition([1, 2], [3, 4])
    second = transition([1, 2, 3, 4, 5, 6], [7])
    (sequence,) = merge_turns(Trajectory([first, second], "done"), 2.0)
    assert sequence.tokens_T.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sequence.sampled_T.tolist() == [False, False, True, True, False, False, True]
    assert sequence.advantages_T.tolist() == [0, 0, 2, 2, 0, 0, 2]


def test_every_sampled_token_says_which_weights_said_it():
    first = transition([1, 2], [3, 4], version=5)
    second = transition([1, 2, 3, 4, 9], [7], version=6)
    (sequence,) = merge_turns(Trajectory([first, second], "done"), 1.0)
    assert sequence.versions_T[sequence.sampled_T].tolist() == [5, 5, 6]
    assert group(Trajectory([first, second], "done")).version == 5


def test_a_turn_that_rewrites_the_past_begins_a_new_sequence():
    first = transition([1, 2], [3, 4])
    second = transition([1, 2, 3, 9, 5], [7])
    sequences = merge_turns(Trajectory([first, second], "done"), 1.0)
    assert [s.tokens_T.tolist() for s in sequences] == [[1, 2, 3, 4], [1, 2, 3, 9, 5, 7]]


def test_rollouts_without_an_advantage_are_left_out():
    good = Trajectory([transition([1], [2], reward=1.0)], "done")
    bad = Trajectory([transition([1], [3])], "done")
    failed = Trajectory([transition([1], [4])], "error", error="boom")
    mixed = group(good, failed, bad)
    advantages = advantages_of(mixed, centred)
    assert advantages == [0.5, None, -0.5]
    assert [s.tokens_T.tolist() for s in to_sequences(mixed, advantages)] == [[1, 2], [1, 3]]
    alike = group(good, good)
    assert not list(to_sequences(alike, advantages_of(alike, centred)))
    kept = advantages_of(alike, centred, keep_alike=True)
    assert [s.advantages_T.tolist() for s in to_sequences(alike, kept)] == [[0, 0], [0, 0]]
