"""Supervised training over the real SDK and a real service: it learns, resumes exactly, stops and fails well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tinker

from tinsmith.cli.attempt import open_run
from tinsmith.cli.sft_job import SftJob
from tinsmith.errors import ConfigError, RunError, ServiceError
from tinsmith.records.metrics import is_time
from tinsmith.records.reader import RunReader
from tinsmith.records.run import read_run

STEPS = 9  # of three epochs of two full batches and a smaller one


class Killed(BaseException):
    """As if the process had ended: nothing in the program catches it."""


class Report:
    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step

    def __call__(self, step: int, values: dict[str, float], /) -> None:
        self._on_step(step)

    def rollouts(self, step: int, records: object) -> None:
        raise AssertionError("sft has no rollouts")


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(pair(f"q{at}", "ab" * (at % 3 + 1)) for at in range(12)))
    return path


def pair(question: str, answer: str) -> str:
    return json.dumps({"question": question, "answer": answer}) + "\n"


def job(data: Path, *words: str) -> SftJob:
    usual = ("batch_size=4", "num_epochs=3", "held_out=0.2", "save_every=2", "optim.lr=0.3")
    return SftJob([f"data={data}", "lora_rank=8", *usual, *words])


async def go(
    client: tinker.ServiceClient,
    directory: Path,
    job: SftJob,
    on_step: Callable[[int, asyncio.Event], object] = lambda step, stop: None,
):
    stop = asyncio.Event()
    report = Report(lambda step: on_step(step, stop) and None)
    return await job.run(open_run(directory, job), client, stop, report)


def timeless(directory: Path) -> list[dict[str, float]]:
    lines = RunReader(directory).metrics()
    return [{k: v for k, v in line.items() if not is_time(k)} for line in lines]


def kill_at(at: int):
    def kill(step: int, stop: asyncio.Event) -> None:
        if step == at:
            raise Killed

    return kill


async def test_it_learns_and_records_every_step(client, data, tmp_path):
    result = await go(client, tmp_path / "r", job(data, "eval_every=4"))
    assert (result.steps, result.finished) == (STEPS, True)
    lines = timeless(tmp_path / "r")
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert [line["step"] for line in lines if "eval/nll" in line] == [0, 4, 8, 9]
    assert lines[-1]["eval/nll"] < 0.7 * lines[0]["eval/nll"]
    assert [line["conversations"] for line in lines[1:]] == [4, 4, 1] * 3
    assert lines[-1]["epoch"] == 3
    assert lines[0]["eval/conversations"] == 3
    reader = RunReader(tmp_path / "r")
    assert [one.step for one in reader.checkpoints()] == [2, 4, 6, 8, 9]
    assert result.sampler_path == reader.checkpoints()[-1].sampler_path
    assert "9 conversations to train on, 3 held out" in [e.get("message") for e in reader.events()]


async def test_sending_ahead_does_not_change_the_numbers(client, server, data, tmp_path):
    """The same updates one after another, each awaited, with plain SDK calls: the same losses."""
    await go(client, tmp_path / "r", job(data, "held_out=0"))
    lines = timeless(tmp_path / "r")[0:]
    trainer = await client.create_lora_training_client_async("tinsmith/tiny", rank=8, seed=0)
    from tinsmith.cli.rl_job import load_renderer
    from tinsmith.sft.data import Batches, render, sequences_of

    config = job(data, "held_out=0").config
    talks = job(data)._file.conversations
    examples = render(talks, load_renderer(trainer, config.model_name), config).examples
    batches = Batches(examples, config.batch_size, config.seed)
    for line in lines:
        sequences = sequences_of(batches.batch(int(line["step"])))
        tokens = sum(sequence.trained for sequence in sequences)
        datums = [sequence.datum(1 / tokens) for sequence in sequences]
        passed = await trainer.forward_backward_async(datums, "cross_entropy")
        output = await passed.result_async()
        stepped = await trainer.optim_step_async(
            tinker.AdamParams(learning_rate=0.3, beta1=0.9, beta2=0.95, eps=1e-8)
        )
        await stepped.result_async()
        assert line["trained_tokens"] == tokens
        # The loss the service reports is the weighted sum: with these weights, the mean.
        assert line["nll"] == pytest.approx(output.metrics["loss:sum"], rel=1e-5)


@pytest.mark.parametrize("killed_at", [0, 1, 4, 7])
async def test_a_killed_run_goes_on_and_equals_an_uninterrupted_one(
    client, data, tmp_path, killed_at
):
    await go(client, tmp_path / "whole", job(data, "eval_every=3"))
    with pytest.raises(Killed):
        await go(client, tmp_path / "killed", job(data, "eval_every=3"), kill_at(killed_at))
    assert (await go(client, tmp_path / "killed", job(data, "eval_every=3"))).finished
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")


async def test_asked_to_stop_it_saves_and_goes_on_later(client, data, tmp_path):
    await go(client, tmp_path / "whole", job(data, "save_every=0"))
    stopping = job(data, "save_every=0")
    result = await go(client, tmp_path / "r", stopping, lambda step, stop: step == 3 and stop.set())
    # The step after it was on its way already: it is done, and saved with it.
    assert (result.steps, result.finished) == (4, False)
    assert [one.step for one in RunReader(tmp_path / "r").checkpoints()] == [4]
    assert (await go(client, tmp_path / "r", job(data, "save_every=0"))).finished
    assert timeless(tmp_path / "r") == timeless(tmp_path / "whole")


async def test_more_epochs_go_on_as_if_they_had_been_asked_for_at_once(client, data, tmp_path):
    await go(client, tmp_path / "whole", job(data))
    await go(client, tmp_path / "r", job(data, "num_epochs=2"))
    await go(client, tmp_path / "r", job(data))
    without = [
        {k: v for k, v in line.items() if "eval" not in k} for line in timeless(tmp_path / "r")
    ]
    whole = [
        {k: v for k, v in line.items() if "eval" not in k} for line in timeless(tmp_path / "whole")
    ]
    assert without == whole


async def test_a_schedule_reaches_its_end_with_the_last_step(client, data, tmp_path):
    await go(client, tmp_path / "r", job(data, "optim.schedule=linear", "optim.warmup_steps=2"))
    rates = [line["lr"] for line in timeless(tmp_path / "r")[1:]]
    assert np.argmax(rates) in (1, 2)
    assert rates[0] == pytest.approx(0.15)
    assert 0 < rates[-1] < 0.06


async def test_it_begins_with_the_weights_of_another_run(client, data, tmp_path):
    await go(client, tmp_path / "first", job(data))
    path = RunReader(tmp_path / "first").checkpoints()[-1].state_path
    await go(
        client, tmp_path / "second", job(data, f"load_checkpoint_path={path}", "num_batches=1")
    )
    first, second = timeless(tmp_path / "first"), timeless(tmp_path / "second")
    assert second[0]["eval/nll"] == pytest.approx(first[-1]["eval/nll"])
    lost = job(data, "load_checkpoint_path=tinker://nobody/weights/1")
    with pytest.raises(ConfigError, match="cannot start from load_checkpoint_path"):
        await go(client, tmp_path / "third", lost)
    other = job(data, f"load_checkpoint_path={path}", "lora_rank=4")
    with pytest.raises(ConfigError, match=r"Give lora_rank=8\."):
        await go(client, tmp_path / "fourth", other)


async def test_only_the_last_and_the_best_checkpoints_are_kept(client, data, tmp_path):
    await go(client, tmp_path / "r", job(data, "keep_last=2", "eval_every=2"))
    kept = RunReader(tmp_path / "r").checkpoints()
    scores = [-line["eval/nll"] for line in timeless(tmp_path / "r")[1:] if "eval/nll" in line]
    assert {8, 9} <= {one.step for one in kept}
    assert len(kept) <= 3
    assert max(scores) in [one.score for one in kept]


async def test_data_that_changed_is_refused(client, data, tmp_path):
    with pytest.raises(Killed):
        await go(client, tmp_path / "r", job(data), kill_at(5))
    before = timeless(tmp_path / "r")
    data.write_text(data.read_text() + pair("new", "b"))
    with pytest.raises(RunError, match=r"data\.jsonl has changed since r began"):
        await go(client, tmp_path / "r", job(data))
    assert timeless(tmp_path / "r") == before


async def test_what_is_left_out_is_told(client, data, tmp_path):
    data.write_text(data.read_text() + "{\n" + pair("long", "a" * 300) + pair("q" * 300, "a"))
    words = ("skip_bad=true", "held_out=0", "max_length=100")
    await go(client, tmp_path / "r", job(data, *words))
    told = [e["message"] for e in RunReader(tmp_path / "r").events() if e["kind"] == "warned"]
    assert told == [
        "lines that cannot be used, left out: 1",
        "conversations longer than max_length=100 tokens, their end cut off: 1",
        "conversations longer than max_length=100 tokens, left out: 1",
    ]
    assert read_run(tmp_path / "r").total_steps == 12  # 13 conversations, not the 14 of the file


async def test_nothing_to_train_on_is_a_sentence(client, data, tmp_path):
    with pytest.raises(ConfigError, match="are longer than max_length=2"):
        await go(client, tmp_path / "r", job(data, "max_length=2"))


async def test_a_failed_update_ends_the_run_with_the_services_reason(
    client, data, tmp_path, monkeypatch
):
    async def refuse(self: tinker.TrainingClient, *_: object) -> None:
        raise tinker.TinkerError("no room left")

    def break_service(step: int, stop: asyncio.Event) -> None:
        if step == 2:
            monkeypatch.setattr(tinker.TrainingClient, "optim_step_async", refuse)

    with pytest.raises(ServiceError, match=r"no room left .*goes on from the last checkpoint"):
        await go(client, tmp_path / "r", job(data), break_service)
    monkeypatch.undo()
    assert (await go(client, tmp_path / "r", job(data))).finished
