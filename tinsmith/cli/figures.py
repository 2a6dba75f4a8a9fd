"""What a run has measured, as lines of the live view: learning, groups, the update, speed, held-out points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from tinsmith.cli.terminal import clean
from tinsmith.cli.words import count, number, share, sparkline
from tinsmith.records import metrics as declared
from tinsmith.records.files import Json
from tinsmith.records.metrics import METRICS
from tinsmith.records.rollout import RolloutRecord
from tinsmith.runs.follow import Snapshot

LABEL = 9
WARNING = "yellow"
REASON_WIDTH = 70


def figures(snapshot: Snapshot, width: int, rollouts: Sequence[RolloutRecord] = ()) -> list[Text]:
    """Every section that the run has figures for; what has left its healthy range is yellow."""
    lines: list[Text] = []
    steps, evaluations = snapshot.steps, snapshot.evaluations
    odd = odd_metrics(snapshot)
    if steps:
        last = steps[-1]
        lines += flow(snapshot.headline, _learning(snapshot.headline, steps, odd), width, "   ")
        lines += flow("groups", _groups(last, odd), width)
        lines += flow("rollouts", _rollouts(last, odd, rollouts), width)
        lines += flow("update", _update(steps, odd) or [Text("none: no signal")], width)
        lines += flow("speed", _speed(last), width)
    if evaluations:
        lines += flow("held out", _held_out(snapshot), width, "   ")
    return lines + [labelled("look", reason, style=WARNING) for reason in concerns(snapshot)]


def labelled(label: str, words: str, style: str = "") -> Text:
    return plain("").append(label.ljust(LABEL), style="bold").append(words, style=style)


def plain(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")


def flow(label: str, parts: Sequence[Text], width: int, between: str = " · ") -> list[Text]:
    """The parts on as many lines as they need; none for no parts."""
    lines: list[Text] = []
    for part in parts:
        if lines and len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1].append(between).append_text(part)
        else:
            lines.append(labelled("" if lines else label, "").append_text(part))
    return lines


# ── what deserves a look ─────────────────────────────────────────────────────────────────────


def odd_metrics(snapshot: Snapshot) -> dict[str, str]:
    """The latest metrics that have left their healthy range, each with its reason."""
    return declared.concerns(_latest(snapshot), snapshot.steps)


def concerns(snapshot: Snapshot) -> list[str]:
    """Why the latest metrics deserve a look, a sentence each."""
    latest = _latest(snapshot)
    return [in_words(name, latest, why) for name, why in odd_metrics(snapshot).items()]


def in_words(name: str, values: Json, why: str) -> str:
    """cut_off 23 %: more than 10 % of ..."""
    return f"{name} {figure(name, values[name])}: {why}"


def _latest(snapshot: Snapshot) -> Json:
    values: Json = {}
    for one in (*snapshot.evaluations[-1:], *snapshot.steps[-1:]):
        values |= one
    return values


def figure(name: str, value: float) -> str:
    """A metric's value with its unit, as the views write it."""
    unit = METRICS[name].unit if name in METRICS else ""
    if unit == "share":
        return share(value)
    return f"{number(value)} {unit}".rstrip()


def commonest_reason(rollouts: Iterable[RolloutRecord]) -> str | None:
    """Why rollouts failed or had to be tried again most often, with how often."""
    reasons = Counter(
        clean(reason, REASON_WIDTH)
        for record in rollouts
        for reason in (*record.retried, record.error)
        if reason
    )
    if not reasons:
        return None
    (reason, times), *_ = reasons.most_common(1)
    return f"{reason} (×{times})" if times > 1 else reason


# ── the sections ─────────────────────────────────────────────────────────────────────────────


def _learning(name: str, steps: Sequence[Json], odd: Mapping[str, str]) -> list[Text]:
    last = steps[-1]
    known = [one[name] for one in steps if name in one]
    head = Text(f"{last[name]:.2f} " if name in last else "none ")
    parts = [head.append(sparkline(known), style="green")]
    for key, label in (
        ("correct", "correct"),
        ("well_formed", "well-formed"),
        ("cut_off", "cut off"),
    ):
        if key in last:
            parts.append(_styled(f"{label} {share(last[key])}", key, odd))
    if "tokens" in last:
        text = Text(f"tokens {last['tokens']:.1f} ")
        recent = [one["tokens"] for one in steps if "tokens" in one]
        parts.append(text.append(sparkline(recent, 6), style="dim"))
    if last.get("turns", 1) != 1:
        parts.append(Text(f"turns {last['turns']:.1f}"))
    return parts


def _groups(last: Json, odd: Mapping[str, str]) -> list[Text]:
    parts = [
        _styled(f"{label} {last[name]:.0f}", name, odd)
        for name, label in (
            ("groups/mixed", "mixed"),
            ("groups/all_right", "all right"),
            ("groups/all_wrong", "all wrong"),
        )
        if name in last
    ]
    for name, label in (
        ("groups/resampled", "resampled"),
        ("groups/stale", "thrown away as too old"),
    ):
        if last.get(name):
            parts.append(_styled(f"{last[name]:.0f} {label}", name, odd))
    if "trained_rollouts" in last and "rollouts" in last:
        parts.append(
            Text(f"trained on {last['trained_rollouts']:.0f} of {last['rollouts']:.0f} rollouts")
        )
    if "conversations" in last:
        parts.append(Text(f"{last['conversations']:.0f} conversations"))
        if "trained_tokens" in last:
            parts.append(Text(f"{count(last['trained_tokens'])} tokens"))
    return parts


def _rollouts(last: Json, odd: Mapping[str, str], rollouts: Sequence[RolloutRecord]) -> list[Text]:
    parts = [
        _styled(f"{last[name]:.0f} {label}", name, odd)
        for name, label in (("failed_rollouts", "failed"), ("retried_rollouts", "tried again"))
        if last.get(name)
    ]
    reason = commonest_reason(rollouts) if parts else None
    return [*parts, Text(f"mostly: {reason}")] if reason else parts


def _update(steps: Sequence[Json], odd: Mapping[str, str]) -> list[Text]:
    last = steps[-1]
    parts: list[Text] = []
    for name, label in (
        ("kl", "sampler≠trainer KL"),
        ("kl_base", "KL from the base"),
        ("entropy", "entropy"),
        ("ratio", "ratio"),
        ("clipped", "clipped"),
        ("grad_norm", "grad"),
        ("loss", "loss"),
    ):
        if name in last:
            value = share(last[name]) if name == "clipped" else number(last[name])
            parts.append(_styled(f"{label} {value}", name, odd))
    if last.get("staleness_max"):
        age = f"weights {number(last.get('staleness', 0.0))} steps old (at most {last['staleness_max']:.0f})"
        parts.append(_styled(age, "staleness", odd))
    if "lr" in last:
        rates = [one["lr"] for one in steps if "lr" in one]
        text = Text(f"lr {number(last['lr'])}")
        if len(set(rates)) > 1:
            top = max(rates)
            text.append(f" {sparkline([rate / top for rate in rates], 8)}", style="dim")
        parts.append(text)
    if last.get("updates", 1) != 1:
        parts.append(Text(f"{last['updates']:.0f} updates"))
    if "epoch" in last and parts:
        parts.append(Text(f"epoch {last['epoch']:.2f}"))
    return parts


def _speed(last: Json) -> list[Text]:
    parts = [
        Text(f"{label} {count(last[name])} tok/s")
        for name, label in (
            ("time/sampled_tokens_per_second", "sample"),
            ("time/trained_tokens_per_second", "train"),
        )
        if name in last
    ]
    if "time/waiting" in last:
        parts.append(Text(f"waiting {share(last['time/waiting'])}{_who_waits(last)}"))
    spent = [
        f"{label} {last[name]:.1f} s"
        for name, label in (
            ("time/sample", "sample"),
            ("time/train", "train"),
            ("time/save", "save"),
            ("time/eval", "evaluate"),
        )
        if name in last
    ]
    return [*parts, Text(f"step: {', '.join(spent)}", style="dim")] if spent else parts


def _who_waits(last: Json) -> str:
    waits = [
        f"{who} {last[name]:.1f} s"
        for name, who in (("time/sampler_waiting", "sampler"), ("time/trainer_waiting", "trainer"))
        if last.get(name)
    ]
    return f" ({', '.join(waits)})" if waits else ""


# ── held-out points ──────────────────────────────────────────────────────────────────────────


def _held_out(snapshot: Snapshot) -> list[Text]:
    name, points = f"eval/{snapshot.headline}", snapshot.evaluations
    first, last = points[0], points[-1]
    text = Text(f"{first[name]:.2f} at step {first['step']}")
    if last is not first:
        text.append(f" → {last[name]:.2f}{_reach(last, name)} at step {last['step']} ")
        text.append(sparkline([one[name] for one in points if name in one]), style="green")
    parts = [text, *(Text(words) for words in pass_rates(last))]
    if best := best_point(snapshot):
        parts.append(Text(best))
    for key, what in (("eval/problems", "problems"), ("eval/conversations", "conversations")):
        if key in last:
            parts.append(Text(f"({last[key]:.0f} {what} never trained on)"))
    return parts


def pass_rates(point: Json) -> list[str]:
    """pass@1 and pass@k of one evaluation with their intervals; nothing where rewards say the same."""
    samples = point.get("eval/samples", 1)
    rates: list[str] = []
    for name, label in (("eval/pass@1", "pass@1"), ("eval/pass@k", f"pass@{samples:.0f}")):
        if name in point and not (name == "eval/pass@k" and samples == 1):
            rates.append(f"{label} {share(point[name])}{_reach(point, name, as_share=True)}")
    return rates


def _reach(point: Json, name: str, *, as_share: bool = False) -> str:
    """The interval of a figure, as from–to; nothing when it is not known."""
    low, high = point.get(f"{name}_low"), point.get(f"{name}_high")
    if low is None or high is None:
        return ""
    return f" [{100 * low:.0f}–{100 * high:.0f} %]" if as_share else f" [{low:.2f}–{high:.2f}]"


def best_point(snapshot: Snapshot) -> str | None:
    """The best of several evaluations and whether its weights were saved; None when the last is best."""
    name = f"eval/{snapshot.headline}"
    points = [one for one in snapshot.evaluations if name in one]
    if len(points) < 2:
        return None
    sign = 1 if snapshot.headline == "reward" else -1
    best = max(points, key=lambda one: (sign * one[name], one["step"]))
    if best is points[-1]:
        return None
    saved = {event.get("step") for event in snapshot.events if event.get("kind") == "saved"}
    kept = " (saved)" if best["step"] in saved else ""
    return f"best {best[name]:.2f} at step {best['step']}{kept}"


def _styled(words: str, name: str, odd: Mapping[str, str]) -> Text:
    return Text(words, style=WARNING if name in odd else "")
