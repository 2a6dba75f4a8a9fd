"""What `--help` prints: every key with its default and its meaning, under short headings."""

from __future__ import annotations

import shutil
import textwrap
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import chz

from tinsmith.cli.config import REQUIRED, Key, environment, has_env, keys
from tinsmith.envs import DEFAULT, ENVIRONMENTS
from tinsmith.rl.config import TrainConfig

HELP_WORDS = ("-h", "--help", "help")
FIRST_GROUP = "what to train"
# heading -> its keys; one that ends with a dot stands for all that begin so.
GROUPS: dict[str, tuple[str, ...]] = {
    FIRST_GROUP: (
        "model_name",
        "load_checkpoint_path",
        "env",
        "num_batches",
        "batch_size",
        "group_size",
        "lora_rank",
        "seed",
    ),
    "algorithm": (
        "adv_estimator",
        "adv_beta",
        "loss_fn",
        "clip_low",
        "clip_high",
        "kl_coef",
        "no_signal",
        "max_resample",
        "num_substeps",
        "num_minibatches",
        "mode",
        "max_steps_off_policy",
    ),
    "optimizer": ("optim.",),
    "rollouts": ("temperature", "rollout."),
    "evaluation and checkpoints": (
        "eval_size",
        "eval_every",
        "eval_samples",
        "save_every",
        "keep_last",
    ),
    "service and records": (
        "base_url",
        "log_path",
        "dry_run",
        "wandb.",
        "tensorboard",
    ),
    "environment": ("env.",),
}
WIDEST_KEY = 38
TRAIN_HEAD = "tinsmith train key=value ...   train a model by reinforcement learning and watch it"


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Heading -> the names that belong under it; those that no heading claims come first of all."""
    groups: dict[str, list[str]] = {heading: [] for heading in GROUPS}
    for name in names:
        groups[_heading(name)].append(name)
    for heading, members in groups.items():
        order = {name: at for at, name in enumerate(GROUPS[heading])}
        members.sort(key=lambda name: order.get(name, order.get(name.split(".")[0] + ".", -1)))
    return {heading: members for heading, members in groups.items() if members}


def _heading(name: str) -> str:
    prefix = name.split(".")[0] + "." if "." in name else None
    claims = (heading for heading, own in GROUPS.items() if name in own or prefix in own)
    return next(claims, FIRST_GROUP)


def help_text(
    words: Sequence[str] = (),
    target: type = TrainConfig,
    head: str = TRAIN_HEAD,
    first: str = FIRST_GROUP,
) -> str:
    """Each key with its default and what it means; `env=NAME` among the words picks whose keys.

    `first` is the heading of the keys that come first.
    """
    picked = [word.lstrip("-")[4:] for word in words if word.lstrip("-").startswith("env=")]
    env = environment(target, {"env": picked[-1]} if picked else {})
    known = {key.name: key for key in keys(target, env)}
    rows = {name: (f"{name}={_shown(key)}", _meaning(key)) for name, key in known.items()}
    left = min(max(len(first) for first, _ in rows.values()), WIDEST_KEY) + 2
    lines = [head, "", "Every key has a default; these are all of them:"]
    for heading, names in grouped(list(rows)).items():
        title = f"{heading} ({env.__name__})" if env and heading == "environment" else heading
        title = first if heading == FIRST_GROUP else title
        lines += ["", title]
        for name in names:
            lines += _row(*rows[name], left)
    return "\n".join([*lines, "", *_footer(target)])


def _row(first: str, meaning: str, left: int) -> list[str]:
    width = max(shutil.get_terminal_size((100, 20)).columns - left - 4, 30)
    wrapped = textwrap.wrap(meaning, width) or [""]
    indent = " " * (left + 2)
    if len(first) > left - 2:  # too long for its column: its meaning begins on the next line
        return [f"  {first}", *(indent + line for line in wrapped)]
    return [f"  {first:<{left}}{wrapped[0]}", *(indent + line for line in wrapped[1:])]


def _shown(key: Key) -> str:
    if key.name == "env":
        return DEFAULT.__name__
    return "..." if key.default is REQUIRED else shown_value(key.default)


def shown_value(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meaning(key: Key) -> str:
    if key.name == "env":
        return f"{key.doc}: {', '.join(ENVIRONMENTS)}"
    choices = typing.get_args(key.type) if typing.get_origin(key.type) is typing.Literal else ()
    return f"{key.doc} ({', '.join(map(str, choices))})" if choices else key.doc


def _footer(target: type) -> Iterator[str]:
    flag = "--batch-size" if "batch_size" in chz.chz_fields(target) else "--eval-size"
    yield f"Keys may be typed with hyphens and as flags: {flag} 100, {flag}=100."
    if has_env(target):
        yield "Keys of the environment may go without env. where no other key has the name: max_tokens=5."
    if "save_every" in chz.chz_fields(target):
        yield "The same command with the log_path of an earlier run goes on from its last checkpoint."
