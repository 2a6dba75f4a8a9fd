"""Evaluation: which problems, how often, with which seeds; its metrics on rollouts worked out by hand."""

from __future__ import annotations

import math

import chz
import pytest

from tests.unit.rl.endpoint_server import Asked, asking
from tinsmith.records.metrics import is_declared
from tinsmith.rl.config import EnvConfig, RolloutConfig
from tinsmith.rl.endpoint import EndpointPolicy, EndpointRenderer
from tinsmith.rl.eval_config import EvalConfig
from tinsmith.rl.evaluate import eval_metrics, evaluate, passed
from tinsmith.rl.pass_at_k import wilson
from tinsmith.rl.types import (
    Action,
    Observation,
    StepResult,
    Trajectory,
    TrajectoryGroup,
    Transition,
)


def rollout(reward, *, cut=False, error=None, tokens=2):
    action = Action(list(range(tokens)), [-1.0] * tokens, "length" if cut else "stop")
    return Trajectory([Transition(Observation([5]), action, reward)], "done", error=error)


def group(*trajectories, metrics=None):
    count = len(trajectories)
    return TrajectoryGroup("p", list(trajectories), [0.0] * count, metrics or [{}] * count)


MIXED = group(
    rollout(1.0, cut=True, tokens=6), rollout(0.0), metrics=[{"correct": 1.0}, {"correct": 0.0}]
)
RIGHT = group(rollout(1.0), rollout(1.0), metrics=[{"correct": 1.0, "odd": 4.0}] * 2)
WRONG = group(rollout(0.0), rollout(0.0, error="boom"), metrics=[{"correct": 0.0}, {}])


def test_the_metrics_of_three_problems():
    values = eval_metrics([MIXED, RIGHT, WRONG])
    assert values["eval/reward"] == values["eval/pass@1"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert values["eval/reward_stderr"] == pytest.approx(0.5 / math.sqrt(3))
    reach = values["eval/reward_high"] - values["eval/reward"]
    assert reach == pytest.approx(1.959964 * 0.5 / math.sqrt(3), abs=1e-6)
    # The third problem has one rollout that ended, which is too few for pass@2.
    assert values["eval/pass@k"] == 1.0
    assert (values["eval/pass@k_low"], values["eval/pass@k_high"]) == pytest.approx(wilson(1.0, 2))
    assert values["eval/tokens"] == pytest.approx((6 + 2 + 2 + 2 + 2) / 5)
    assert values["eval/cut_off"] == pytest.approx(1 / 5)
    assert values["eval/correct"] == pytest.approx(3 / 5)
    assert values["eval/env/odd"] == 4.0
    assert (values["eval/problems"], values["eval/samples"]) == (3, 2)
    assert values["eval/failed_rollouts"] == 1
    assert all(map(is_declared, values))


def test_one_rollout_each_has_no_pass_at_k():
    values = eval_metrics([group(rollout(1.0)), group(rollout(0.0))])
    assert "eval/pass@k" not in values
    assert (values["eval/pass@1_low"], values["eval/pass@1_high"]) == pytest.approx(wilson(0.5, 2))


def test_nothing_but_failures_has_no_reward():
    values = eval_metrics([group(rollout(0.0, error="boom"))])
    assert values == {"eval/problems": 1, "eval/samples": 1, "eval/failed_rollouts": 1}
    assert eval_metrics([])["eval/problems"] == 0


def test_one_problem_has_a_reward_without_bounds():
    values = eval_metrics([group(rollout(0.5))])
    assert values["eval/reward"] == 0.5
    assert not {"eval/reward_stderr", "eval/reward_low", "eval/reward_high"} & values.keys()
    assert all(map(math.isfinite, values.values()))


@pytest.mark.parametrize(
    ("reward", "metrics", "is_passed"),
    [
        (0.2, {"correct": 1.0}, True),
        (5.0, {"correct": 0.0}, False),
        (1.0, {}, True),
        (0.9, {}, False),
    ],
)
def test_the_environments_word_goes_before_the_reward(reward, metrics, is_passed):
    assert passed(reward, metrics) is is_passed


# ── which problems ──


class Count:
    """Asks for its own number."""

    def __init__(self, position: int) -> None:
        self.problem_id = f"p{position}"
        self._position = position

    async def make_envs(self, group_size: int):
        return [self] * group_size

    async def initial_observation(self) -> Observation:
        return Observation([self._position])

    async def step(self, action: Action) -> StepResult:
        return StepResult(reward=float(action.tokens_T[0]), done=True)

    async def group_rewards(self, trajectories_G, envs_G):
        return [(0.0, {})] * len(trajectories_G)

    async def cleanup(self) -> None:
        return None


class Source:
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def problem(self, position: int) -> Count:
        return Count(position)

    def observe(self, groups_P):
        return {}

    def state(self):
        return {}

    def restore(self, state) -> None:
        return None


class Parrot:
    """Repeats the number it is shown, and remembers what it was asked."""

    version = 0

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, int]] = []

    async def __call__(self, observation, *, max_tokens, samples, seed):
        self.asked.append((observation.tokens_T[0], samples, max_tokens, seed))
        return [Action(observation.tokens_T, [-1.0], "stop")] * samples


def settings(**values) -> EvalConfig:
    return chz.replace(EvalConfig(env=EnvConfig(max_tokens=7)), **values)


async def test_every_evaluation_tries_the_same_problems_with_the_same_seeds():
    first, second, other = Parrot(), Parrot(), Parrot()
    done: list[tuple[int, int]] = []
    config = settings(eval_size=4, eval_samples=3, rollout=RolloutConfig(concurrent=4))
    groups_P = await evaluate(config, Source(9), first, on_done=lambda *at: done.append(at))
    await evaluate(config, Source(9), second, on_done=lambda *at: None)
    await evaluate(settings(eval_size=4, seed=1), Source(9), other, on_done=lambda *at: None)
    assert [g.problem_id for g in groups_P] == ["p0", "p1", "p2", "p3"]
    assert [g.position for g in groups_P] == [0, 1, 2, 3]
    assert [g.rewards_G() for g in groups_P] == [[float(p)] * 3 for p in range(4)]
    assert sorted(first.asked) == sorted(second.asked)
    assert {asked[:3] for asked in first.asked} == {(p, 3, 7) for p in range(4)}
    assert {asked[3] for asked in first.asked}.isdisjoint(asked[3] for asked in other.asked)
    assert (done[0], done[-1]) == ((0, 12), (12, 12))


async def test_no_problem_is_tried_twice_to_make_up_the_number():
    groups_P = await evaluate(settings(eval_size=50), Source(3), Parrot(), on_done=lambda *at: None)
    assert len(groups_P) == 3


async def test_a_policy_behind_an_endpoint_is_evaluated_like_any_other():
    """One of two samples fails for good: it alone is lost, with its reason."""

    def answer(asked: Asked):
        if asked.number == 1:
            return 400, {"error": {"message": "no luck"}}
        return 200, {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}

    class Question(Count):
        def __init__(self, renderer: EndpointRenderer) -> None:
            super().__init__(0)
            self._renderer = renderer

        async def initial_observation(self) -> Observation:
            return self._renderer.prompt([{"role": "user", "content": "2 + 2?"}])

        async def step(self, action: Action) -> StepResult:
            right = self._renderer.parse(action) == "4"
            return StepResult(float(right), done=True, metrics={"correct": float(right)})

    async with asking(answer) as (endpoint, _):
        renderer = EndpointRenderer()
        source = Source(1)
        source.problem = lambda position: Question(renderer)
        config = settings(eval_samples=2, rollout=RolloutConfig(retries=0))
        policy = EndpointPolicy(endpoint, renderer, 1.0)
        (only,) = await evaluate(config, source, policy, on_done=lambda *at: None)
    assert sorted(only.rewards_G(), key=str) == [1.0, None]
    assert [t.error for t in only.trajectories_G if t.error] == [
        f"{endpoint.url} answers HTTP 400: no luck"
    ]
    assert not policy.counted
