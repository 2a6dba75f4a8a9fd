"""Rolling out a group: one request for a shared start, seeds by member, limits, failures as data."""

from __future__ import annotations

import asyncio

import pytest

from tinsmith.errors import RunError
from tinsmith.rl.policy import derive_seed
from tinsmith.rl.rollouts import refuse_all_failed, roll_group, roll_groups
from tinsmith.rl.types import Action, Observation, RolloutLimits, StepResult

LIMITS = RolloutLimits(max_tokens_per_turn=8, max_turns=5)


class Echo:
    """A policy that says its seed and which of the samples it is."""

    version = 3

    def __init__(self) -> None:
        self.requests: list[tuple[tuple[int, ...], int, int]] = []

    async def __call__(self, observation, *, max_tokens, samples, seed):
        self.requests.append((tuple(observation.tokens_T), samples, seed))
        return [Action([seed % 1000, i], [-1.0, -1.0], "stop") for i in range(samples)]


class CountdownEnv:
    """Done after `turns` turns; shows what was said so far and its member's number."""

    def __init__(self, member: int, turns: int, alike: bool, slow: float = 0.0) -> None:
        self.member, self.left, self.slow = member, turns, slow
        self.shown = [1] if alike else [1, member]

    async def initial_observation(self):
        return Observation(self.shown)

    async def step(self, action):
        await asyncio.sleep(self.slow)
        self.left -= 1
        self.shown = [*self.shown, *action.tokens_T, 50 + self.member]
        done = self.left == 0
        return StepResult(
            1.0, done, None if done else Observation(self.shown), {"turns_left": self.left}
        )


class Group:
    problem_id = "p"

    def __init__(self, *, turns=1, alike=True, break_at=None, slow=None, broken_times=99) -> None:
        self.broken_times, self.made = broken_times, 0
        self.turns, self.alike, self.break_at, self.slow = turns, alike, break_at, slow or {}
        self.cleaned = 0
        self.judged = 0

    async def make_envs(self, group_size):
        self.made += 1
        if self.break_at == "make":
            raise OSError("no room for a sandbox")
        envs = [
            CountdownEnv(g, self.turns, self.alike, self.slow.get(g, 0.0))
            for g in range(group_size)
        ]
        if self.made > self.broken_times:
            return envs
        if self.break_at == "observe":
            envs[1].initial_observation = self._broken
        if self.break_at == "step":
            envs[1].step = self._broken
        return envs

    async def _broken(self, *_):
        raise ValueError("bad luck")

    async def group_rewards(self, trajectories_G, envs_G):
        if self.break_at == "judge":
            raise KeyError("verdict")
        self.judged = len(trajectories_G)
        return [(0.5, {"judged": 1.0}) for _ in trajectories_G]

    async def cleanup(self):
        self.cleaned += 1


def roll(group, policy, size=3, limits=LIMITS, seed=7):
    return asyncio.run(roll_group(group, policy, size, limits, seed=seed))


def test_a_shared_first_observation_is_one_request():
    policy = Echo()
    found = roll(Group(), policy)
    assert policy.requests == [((1,), 3, derive_seed(7, 0, 0))]
    assert [t.transitions[0].action.tokens_T[1] for t in found.trajectories_G] == [0, 1, 2]
    assert found.rewards_G() == [1.5, 1.5, 1.5]
    assert found.metrics_G[0] == {"turns_left": 0, "judged": 1.0}


def test_different_first_observations_are_requests_of_their_own():
    policy = Echo()
    roll(Group(alike=False), policy)
    assert [(shown, n) for shown, n, _ in policy.requests] == [
        ((1, 0), 1),
        ((1, 1), 1),
        ((1, 2), 1),
    ]
    assert len({seed for *_, seed in policy.requests}) == 3


def test_what_is_said_does_not_depend_on_who_is_quicker():
    def said(slow):
        found = roll(Group(turns=3, slow=slow), Echo())
        return [[t.action.tokens_T for t in one.transitions] for one in found.trajectories_G]

    assert said({}) == said({0: 0.02, 1: 0.01}) == said({2: 0.02})


def test_later_turns_differ_in_seed_between_members_and_turns():
    policy = Echo()
    roll(Group(turns=3), policy)
    assert len({seed for *_, seed in policy.requests}) == 1 + 3 * 2


def test_limits_on_turns_and_tokens():
    found = roll(Group(turns=99), Echo())
    assert {t.stop_reason for t in found.trajectories_G} == {"max_turns"}
    assert len(found.trajectories_G[0].transitions) == 5
    tight = RolloutLimits(max_tokens_per_turn=8, max_turns=99, max_trajectory_tokens=7)
    found = roll(Group(turns=99), Echo(), limits=tight)
    assert {t.stop_reason for t in found.trajectories_G} == {"max_trajectory_tokens"}
    assert len(found.trajectories_G[0].transitions) == 2


def test_a_rollout_that_takes_too_long_fails_alone():
    limits = RolloutLimits(max_tokens_per_turn=8, max_turns=5, seconds=0.2)
    found = roll(Group(slow={1: 30.0}), Echo(), limits=limits)
    assert [t.error for t in found.trajectories_G] == [
        None,
        "took longer than 0.2 s (rollout.seconds)",
        None,
    ]


@pytest.mark.parametrize("where", ["observe", "step"])
def test_one_broken_rollout_leaves_the_others_alone(where):
    group = Group(break_at=where)
    found = roll(group, Echo())
    assert [t.error for t in found.trajectories_G] == [None, "ValueError: bad luck", None]
    assert found.rewards_G() == [1.5, None, 1.5]
    assert (group.judged, group.cleaned) == (2, 1)


@pytest.mark.parametrize(
    ("where", "reason"),
    [("make", "OSError: no room for a sandbox"), ("judge", "KeyError: 'verdict'")],
)
def test_a_broken_problem_fails_all_its_rollouts_and_is_cleaned_up(where, reason):
    group = Group(break_at=where)
    found = roll(group, Echo())
    assert [t.error for t in found.trajectories_G] == [reason] * 3
    assert found.rewards_G() == [None] * 3
    assert group.cleaned == 1


def test_a_policy_that_fails_or_answers_too_little_is_recorded():
    class Silent(Echo):
        async def __call__(self, observation, *, max_tokens, samples, seed):
            if samples == 1:
                raise ConnectionError("gone")
            return (await super().__call__(observation, max_tokens=8, samples=samples, seed=seed))[
                :2
            ]

    found = roll(Group(), Silent())
    assert {t.error for t in found.trajectories_G} == {
        "the service gave 2 answers where 3 were asked for"
    }
    found = roll(Group(turns=2), Silent(), size=2)
    assert [t.error for t in found.trajectories_G] == ["ConnectionError: gone"] * 2
    assert len(found.trajectories_G[0].transitions) == 1


def test_a_failing_policy_is_asked_again_for_the_same_words():
    class Shaky(Echo):
        async def __call__(self, observation, **asked):
            actions = await super().__call__(observation, **asked)
            if len(self.requests) % 2:
                raise ConnectionError("gone")
            return actions

    retrying = RolloutLimits(max_tokens_per_turn=8, max_turns=5, retries=1)
    calm = roll(Group(turns=3), Echo(), limits=retrying)
    policy = Shaky()
    shaken = roll(Group(turns=3), policy, size=3, limits=retrying)
    said = [[t.action.tokens_T for t in one.transitions] for one in shaken.trajectories_G]
    assert said == [[t.action.tokens_T for t in one.transitions] for one in calm.trajectories_G]
    assert len(policy.requests) == 2 * (1 + 3 * 2)
    gone = roll(Group(), Shaky())
    assert {t.error for t in gone.trajectories_G} == {"ConnectionError: gone"}


@pytest.mark.parametrize("where", ["observe", "step"])
def test_a_failed_rollout_is_tried_again_in_a_new_environment(where):
    limits = RolloutLimits(max_tokens_per_turn=8, retries=2)
    group = Group(break_at=where, broken_times=1)
    found = roll(group, Echo(), limits=limits)
    assert [t.error for t in found.trajectories_G] == [None] * 3
    assert [t.retried for t in found.trajectories_G] == [(), ("ValueError: bad luck",), ()]
    assert found.rewards_G() == [1.5] * 3
    assert (group.made, group.judged, group.cleaned) == (2, 3, 1)


def test_a_rollout_that_always_fails_says_every_reason():
    class Broken(Group):
        async def make_envs(self, group_size):
            envs = await super().make_envs(group_size)
            if group_size == 1:
                envs[0].step = self._broken
            return envs

    limits = RolloutLimits(max_tokens_per_turn=8, retries=2)
    found = roll(Broken(break_at="step", broken_times=1), Echo(), limits=limits)
    assert found.trajectories_G[1].error == "ValueError: bad luck"
    assert found.trajectories_G[1].retried == ("ValueError: bad luck",) * 2


def test_a_turn_is_cut_to_the_room_that_is_left():
    asked = []

    class Listening(Echo):
        async def __call__(self, observation, *, max_tokens, samples, seed):
            asked.append(max_tokens)
            return await super().__call__(
                observation, max_tokens=max_tokens, samples=samples, seed=seed
            )

    limits = RolloutLimits(max_tokens_per_turn=8, max_turns=99, max_trajectory_tokens=10)
    roll(Group(turns=99), Listening(), size=2, limits=limits)
    assert asked == [8, 6, 6, 3, 3]
    tight = RolloutLimits(max_tokens_per_turn=8, max_trajectory_tokens=1)
    found = roll(Group(), Echo(), limits=tight)
    assert all("leaves no room" in (t.error or "") for t in found.trajectories_G)


def test_groups_are_counted_and_keep_their_order_and_positions():
    heard = []
    groups = {4: Group(slow={0: 0.02}), 9: Group()}
    found = asyncio.run(
        roll_groups(groups, Echo(), 3, LIMITS, seed=1, on_done=lambda *c: heard.append(c))
    )
    assert heard == [(0, 6), (3, 6), (6, 6)]
    assert [group.position for group in found] == [4, 9]
    firsts = [group.trajectories_G[0].transitions[0].action.tokens_T[0] for group in found]
    assert firsts == [derive_seed(derive_seed(1, i), 0, 0) % 1000 for i in (4, 9)]
    refuse_all_failed(found)


def test_slots_bound_how_many_groups_are_in_progress():
    present, most = 0, 0

    class Counting(Group):
        async def make_envs(self, group_size):
            nonlocal present, most
            present += 1
            most = max(most, present)
            return await super().make_envs(group_size)

        async def cleanup(self):
            nonlocal present
            present -= 1

    async def run():
        slots = asyncio.Semaphore(2)
        groups = {i: Counting() for i in range(7)}
        return await roll_groups(
            groups, Echo(), 2, LIMITS, seed=1, on_done=lambda *_: None, slots=slots
        )

    assert len(asyncio.run(run())) == 7
    assert most == 2


def test_when_everything_fails_the_commonest_reason_is_told():
    found = [roll(Group(break_at="make"), Echo())]
    with pytest.raises(RunError, match="all 3 rollouts failed; 3 of them said: OSError: no room"):
        refuse_all_failed(found)


def test_seeds_are_stable_and_fit_in_64_bits():
    assert derive_seed(0, "train", 1) == derive_seed(0, "train", 1)
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert all(0 <= derive_seed(0, i) < 2**62 for i in range(100))
