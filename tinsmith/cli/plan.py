"""`dry_run=true`: what a training run would do, with its estimates; starts nothing and writes nothing."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinsmith.cli.config import flat, parse
from tinsmith.cli.config_help import grouped, shown_value
from tinsmith.cli.model_size import Load, Part, local_directory, memory, read_shape
from tinsmith.cli.prompt_lengths import Problems, measure
from tinsmith.cli.words import count, duration, number
from tinsmith.errors import ConfigError
from tinsmith.records.files import Json
from tinsmith.rl.config import TrainConfig
from tinsmith.rl.schedule import learning_rate

LABEL = 14
SHOWN_POINTS = 8  # evaluations and checkpoints named one by one
PACE_STEPS = 10


def show(config: TrainConfig) -> None:
    """Print the plan: first what was changed, at the end all settings."""
    for line in settings_lines(config):
        print(line)
    problems = measure(config)
    for line in plan_lines(config, problems, find_earlier(config)):
        print(line)
    print("\nall settings")
    for heading, names in grouped(list(flat(config))).items():
        print(f"  {heading}")
        for row in _wrapped("    ", [f"{n}={shown_value(flat(config)[n])}" for n in names]):
            print(row)
    print("\nNothing was started. The same command without dry_run starts the run.")


def settings_lines(config: TrainConfig) -> list[str]:
    """Only what differs from the defaults."""
    now, default = flat(config), _defaults(config)
    changed = [
        f"{name}={shown_value(now[name])}"
        for names in grouped(list(now)).values()
        for name in names
        if now[name] != default.get(name) and name not in ("dry_run", "log_path")
    ]
    first = _wrapped(" " * LABEL, changed or ["nothing: every setting is the default"])
    return [f"{'changed':<{LABEL}}{first[0].strip()}", *first[1:]]


def _defaults(config: TrainConfig) -> Json:
    """What every key would be had only model, environment and dataset been given: others follow from them."""
    now, plain = flat(config), flat(parse([]))
    chosen = [name for name in ("model_name", "env", "env.dataset") if name in now]
    try:
        following = flat(parse([f"{name}={now[name]}" for name in chosen]))
    except ConfigError:  # these three alone are no run
        following = plain
    return following | {name: plain.get(name) for name in chosen}


def plan_lines(config: TrainConfig, problems: Problems, earlier: Earlier | None) -> list[str]:
    """Every estimate, a labelled line or more each."""
    rows = [
        ("problems", _problems(config, problems)),
        ("a step", _a_step(config, problems, earlier)),
        ("in all", _in_all(config, problems, earlier)),
        ("updates", _updates(config)),
        ("learning rate", _rates(config)),
        ("evaluation", _evaluation(config, problems)),
        ("checkpoints", _checkpoints(config)),
        ("time", _time(config, earlier)),
    ]
    lines = [line for label, words in rows for line in _labelled(label, words)]
    return [*lines, *_memory(config, problems)]


# ── problems, rollouts, tokens ───────────────────────────────────────────────────────────────


def rollout_tokens(config: TrainConfig) -> int:
    """The most that the policy may say in one rollout."""
    limits = config.env.limits()
    bounds = [
        limits.max_turns * limits.max_tokens_per_turn,
        limits.max_trajectory_tokens,
        config.rollout.max_tokens,
    ]
    return min(bound for bound in bounds if bound is not None)


def most_problems(config: TrainConfig) -> int:
    """Of one step, with all that may be sampled in place of those without signal."""
    further = config.max_resample if config.no_signal == "resample" else 0
    return config.batch_size + int(further * config.batch_size)


def _problems(config: TrainConfig, problems: Problems) -> str:
    seen = config.batch_size * config.num_batches
    epochs = number(seen / max(problems.train, 1))
    return (
        f"{problems.train:,} to train on, of which the run takes {seen:,} ({epochs} epochs); "
        f"{problems.held_out:,} held out"
    )


def _a_step(config: TrainConfig, problems: Problems, earlier: Earlier | None) -> str:
    groups, most = config.batch_size, most_problems(config)
    rollouts = groups * config.group_size
    words = f"{groups:,} problems × {config.group_size} = {rollouts:,} rollouts"
    if most > groups:
        words += f" (at most {most * config.group_size:,} with those sampled again)"
    return (
        f"{words}; prompts of {problems.mean_prompt:.0f} tokens on average, at most "
        f"{problems.longest_prompt:,} ({problems.how}); {_sampled(config, 1, earlier)}"
    )


def _in_all(config: TrainConfig, problems: Problems, earlier: Earlier | None) -> str:
    rollouts = config.batch_size * config.group_size * config.num_batches
    shown = rollouts * problems.mean_prompt
    words = (
        f"{config.num_batches:,} steps, {rollouts:,} rollouts; {count(shown)} prompt tokens; "
        f"{_sampled(config, config.num_batches, earlier)}"
    )
    if config.mode == "async":
        words += "; groups that grow too old are thrown away and come on top"
    return words


def _sampled(config: TrainConfig, steps: int, earlier: Earlier | None) -> str:
    most = most_problems(config) * config.group_size * rollout_tokens(config) * steps
    if earlier is None or earlier.tokens is None:
        return f"at most {count(most)} sampled tokens (how many to expect is not known yet)"
    expected = config.batch_size * config.group_size * steps
    expected_tokens = expected * min(earlier.tokens, rollout_tokens(config))
    return f"at most {count(most)} sampled tokens, about {count(expected_tokens)} going by {earlier.name}"


# ── updates, evaluations, checkpoints ────────────────────────────────────────────────────────


def _updates(config: TrainConfig) -> str:
    total = config.num_batches * config.num_substeps
    words = f"{total:,} optimizer steps ({config.num_substeps} a batch)"
    if config.num_minibatches > 1:
        words += f", each of {config.num_minibatches} passes"
    return f"{words}; {config.adv_estimator} advantages, {config.loss_fn} loss, mode {config.mode}"


def _rates(config: TrainConfig) -> str:
    optim, total, peak = config.optim, config.num_batches, config.learning_rate
    if optim.schedule == "constant" and optim.warmup_steps == 0:
        return f"{number(peak)} at every step"
    steps = sorted({1, min(max(optim.warmup_steps, 1), total), (total + 1) // 2, total})
    points = [f"step {n}: {number(learning_rate(peak, optim, n, total))}" for n in steps]
    return f"{optim.schedule}, {optim.warmup_steps} steps of warm-up; {', '.join(points)}"


def _evaluation(config: TrainConfig, problems: Problems) -> str:
    tried = min(config.eval_size, problems.held_out)
    if tried == 0:
        return "none"
    points = _points(config.num_batches, config.eval_every, with_start=True)
    rollouts = tried * config.eval_samples
    return (
        f"{tried:,} held-out problems × {config.eval_samples} after step {_some(points)}: "
        f"{len(points)} times, {len(points) * rollouts:,} rollouts"
    )


def _checkpoints(config: TrainConfig) -> str:
    points = _points(config.num_batches, config.save_every, with_start=False)
    words = f"after step {_some(points)}: {len(points)}"
    if config.eval_every and config.eval_size:
        words += ", and when an evaluation is the best so far"
    return words + (
        f"; the last {config.keep_last} and the best are kept" if config.keep_last else ""
    )


def _points(total: int, every: int, *, with_start: bool) -> list[int]:
    between = range(every, total, every) if every else range(0)
    return [*([0] if with_start else []), *between, total]


def _some(points: Sequence[int]) -> str:
    if len(points) <= SHOWN_POINTS:
        return ", ".join(map(str, points))
    first = ", ".join(map(str, points[:3]))
    return f"{first}, …, {points[-1]}"


# ── time ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Earlier:
    """What an earlier run of the same model in the same environment measured."""

    name: str
    seconds: float  # a step
    rollouts: int  # a step
    tokens: float | None  # that the policy said in a rollout


def find_earlier(config: TrainConfig) -> Earlier | None:
    """The newest run in the runs directory with the same model, environment and service."""
    from tinsmith.runs.follow import is_step
    from tinsmith.runs.manager import RunManager

    now = flat(config)
    manager = RunManager()
    for run in manager.list(limit=None):
        if not _same_work(now, run.info.config):
            continue
        steps = [line for line in manager.metrics(str(run.directory)) if is_step(line)][
            -PACE_STEPS:
        ]
        timed = [line["time/step"] for line in steps if "time/step" in line]
        if timed:
            said = [line["tokens"] for line in steps if "tokens" in line]
            size = run.info.config["batch_size"] * run.info.config["group_size"]
            tokens = sum(said) / len(said) if said else None
            return Earlier(run.name, sum(timed) / len(timed), size, tokens)
    return None


def _same_work(now: Json, before: Json) -> bool:
    same = ("model_name", "env", "env.dataset", "env.max_tokens", "base_url")
    sizes = ("batch_size", "group_size")
    return all(now.get(key) == before.get(key) for key in same) and all(
        isinstance(before.get(key), int) for key in sizes
    )


def _time(config: TrainConfig, earlier: Earlier | None) -> str:
    if earlier is None:
        return "not known: no earlier run of this model in this environment"
    rollouts = config.batch_size * config.group_size
    a_step = earlier.seconds * rollouts / earlier.rollouts
    words = f"{earlier.name} took {earlier.seconds:.1f} s a step of {earlier.rollouts:,} rollouts"
    total = duration(round(a_step * config.num_batches))
    if rollouts == earlier.rollouts:
        return f"{words}: about {total} in all, without evaluations"
    return f"{words}: about {a_step:.1f} s and {total} in all if it grows with the rollouts"


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def _memory(config: TrainConfig, problems: Problems) -> list[str]:
    remote = config.base_url not in (None, "local")
    cuda = not remote and has_cuda()
    device = "cuda" if remote or cuda else "cpu"
    value_bytes = 2 if device == "cuda" else 4
    where = (
        "the service's" if remote else "this machine's GPU" if cuda else "this machine's, no GPU"
    )
    title = f"memory ({where}; assumed: weights in {'bfloat16' if value_bytes == 2 else 'float32'})"
    directory = local_directory(config.model_name)
    shape = read_shape(directory) if directory else None
    if shape is None:
        return [f"{title}: not known, as the model's config.json is not here or of another kind"]
    parts = memory(shape, load_of(config, problems), device=device, value_bytes=value_bytes)
    lines = [title, *(line for part in parts for line in _part(part))]
    total = sum(part.bytes for part in parts)
    have = "" if remote else _have(device)
    missing = (
        "" if shape.parameters is not None else ", without the weights: their number is not known"
    )
    return [*lines, f"  {'in all':<16}{size(total):>9}  at most{missing}{have}"]


def load_of(config: TrainConfig, problems: Problems) -> Load:
    """What the service must hold at once, at most."""
    said = rollout_tokens(config)
    most = most_problems(config) * config.group_size
    limit = config.rollout.concurrent or most
    passes = config.num_substeps * config.num_minibatches
    groups = -(-config.batch_size // passes)
    return Load(
        rows=min(limit, most),
        row_tokens=problems.longest_prompt + said,
        batch_tokens=groups * config.group_size * (round(problems.mean_prompt) + said),
        lora_rank=config.lora_rank,
        versions=config.max_steps_off_policy + 1 if config.mode == "async" else 1,
    )


def has_cuda() -> bool:
    """Whether there is an NVIDIA device; torch, which would know better, takes seconds to ask."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _part(part: Part) -> Iterator[str]:
    head = f"  {part.what:<16}{size(part.bytes):>9}  "
    wrapped = textwrap.wrap(part.why, max(_columns() - len(head), 30)) or [""]
    yield head + wrapped[0]
    yield from (" " * len(head) + more for more in wrapped[1:])


def _have(device: str) -> str:
    if device != "cpu":
        return ""
    import psutil

    return f"; {size(psutil.virtual_memory().available)} of this machine's memory are free"


def size(count: int) -> str:
    """1.2 GB, 340 MB, 12 kB."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count} B"


# ── lines ────────────────────────────────────────────────────────────────────────────────────


def _columns() -> int:
    return max(shutil.get_terminal_size((100, 20)).columns, 40)


def _labelled(label: str, words: str) -> list[str]:
    wrapped = textwrap.wrap(words, _columns() - LABEL) or [""]
    return [f"{'' if at else label:<{LABEL}}{line}" for at, line in enumerate(wrapped)]


def _wrapped(indent: str, items: Sequence[str]) -> list[str]:
    """Items side by side, none of them cut."""
    rows: list[str] = []
    for item in items:
        if rows and len(rows[-1]) + 2 + len(item) <= _columns():
            rows[-1] += f"  {item}"
        else:
            rows.append(indent + item)
    return rows
