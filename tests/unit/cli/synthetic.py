"""Run directories for the views, written with the real writer."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from tinsmith.records.rollout import RolloutRecord
from tinsmith.records.run import RunInfo, RunStatus
from tinsmith.records.writer import RunWriter

START = 1_000_000.0


class Clock:
    """Each look is a second later."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def info(name: str, **changes: object) -> RunInfo:
    base = RunInfo(
        id=name,
        name=name,
        status=RunStatus.RUNNING,
        command=["tinsmith", "train", "env=MathConfig", "env.dataset=arithmetic", "group_size=4"],
        config={
            "model_name": "tinsmith/tiny",
            "lora_rank": 32,
            "seed": 3,
            "env": {"dataset": "arithmetic"},
        },
        changed=["env.dataset=arithmetic", "group_size=4"],
        created_at=START,
        started_at=START,
        total_steps=4,
        pid=os.getpid(),
        pid_started_at=psutil.Process().create_time(),
        service="local service (cpu, 127.0.0.1:7411)",
    )
    return base.changed_to(**changes)


def rollout(step: int, problem: str, member: int, said: str, **changes: object) -> RolloutRecord:
    right = said == "85"
    fields: dict[str, object] = {
        "step": step,
        "problem_id": problem,
        "member": member,
        "split": "train",
        "policy_version": step - 1,
        "reward": float(right),
        "advantage": 0.25 if right else -0.75,
        "stop_reason": "done",
        "turns": [
            {"role": "prompt", "text": "<|im_start|>user\nWhat is 47 + 38?<|im_end|>\n"},
            {
                "role": "assistant",
                "text": f"{said}<|im_end|>",
                "logs": {
                    "question": "What is 47 + 38?",
                    "reply": said,
                    "answer": said,
                    "expected": "85",
                },
            },
        ],
        "metrics": {"correct": float(right)},
    }
    return RolloutRecord(**(fields | changes))  # type: ignore[arg-type]


def metrics(step: int, **changes: float) -> dict[str, float]:
    values = {
        "reward": 0.2 * step,
        "correct": 0.2 * step,
        "well_formed": 0.98,
        "cut_off": 0.012,
        "tokens": 3.8,
        "rollouts": 400.0,
        "trained_rollouts": 184.0,
        "groups/mixed": 56.0,
        "groups/all_right": 31.0,
        "groups/all_wrong": 13.0,
        "kl": 0.0004,
        "entropy": 1.31,
        "grad_norm": 0.42,
        "lr": 1e-4,
        "time/step": 4.1,
        "time/sampled_tokens_per_second": 1900.0,
        "time/trained_tokens_per_second": 3200.0,
    }
    return values | {name.replace("__", "/"): value for name, value in changes.items()}


def running(directory: Path, steps: int = 2, **changes: object) -> RunWriter:
    """A run in the middle of its work; its process is this one."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(directory, info(directory.name, **changes), clock=Clock())
    writer.event("started")
    writer.metrics(0, {"eval/reward": 0.18, "eval/problems": 200.0})
    writer.rollouts([rollout(0, "h1", 0, "75", split="eval", advantage=None)])
    for step in range(1, steps + 1):
        writer.rollouts(
            [
                rollout(step, "p1", member, said)
                for member, said in enumerate(["85", "85", "75", "85"])
            ]
            + [rollout(step, "p2", member, "85", advantage=None) for member in range(4)]
        )
        writer.metrics(step, metrics(step))
    writer.checkpoint(steps, "tinker://m/weights/2", "tinker://m/sampler_weights/2", {})
    writer.progress(steps + 1, "sample", 312, 400)
    return writer


def finished(directory: Path, **changes: object) -> RunWriter:
    writer = running(directory, steps=3, **changes)
    writer.rollouts(
        [rollout(4, "p1", 0, "85"), rollout(4, "h1", 0, "85", split="eval", advantage=None)]
    )
    writer.metrics(4, metrics(4, eval__reward=0.97, eval__problems=200.0))
    writer.finish(RunStatus.FINISHED)
    return writer
