"""Rollouts of one problem as a row: the question, who was right, and what was said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.text import Text

from tinsmith.cli.terminal import clean
from tinsmith.cli.words import signed
from tinsmith.records.rollout import RolloutRecord

_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")


def groups(records: Iterable[RolloutRecord], *, split: str = "train") -> list[list[RolloutRecord]]:
    """The rollouts of each problem together, in the order the problems came."""
    found: dict[str, list[RolloutRecord]] = {}
    for record in records:
        if record.split == split:
            found.setdefault(record.problem_id, []).append(record)
    return [sorted(group, key=lambda record: record.member) for group in found.values()]


def telling(all_groups: Sequence[list[RolloutRecord]], count: int) -> list[list[RolloutRecord]]:
    """The groups worth a row: those that teach something first, then some that do not."""
    mixed = [group for group in all_groups if not _alike(group)]
    alike = [group for group in all_groups if _alike(group)]
    room_for_alike = 1 if len(mixed) >= count > 1 and alike else max(count - len(mixed), 0)
    return [*mixed[: count - room_for_alike], *alike[:room_for_alike]]


def question(record: RolloutRecord) -> str:
    """What the policy was asked: in the environment's words, else the prompt without special tokens."""
    for turn in record.turns:
        if asked := turn.get("logs", {}).get("question"):
            return asked
    prompt = next(
        (turn.get("text", "") for turn in record.turns if turn.get("role") == "prompt"), ""
    )
    return " ".join(_SPECIAL.sub(" ", prompt).split()) or record.problem_id


def answer(record: RolloutRecord) -> str:
    """What the policy said last: the answer as it was read, else its words."""
    spoken = [turn for turn in record.turns if turn.get("role") == "assistant"]
    if not spoken:
        return record.error or ""
    logs = spoken[-1].get("logs", {})
    return logs.get("answer") or logs.get("reply") or _SPECIAL.sub("", spoken[-1].get("text", ""))


def learned(before: Iterable[RolloutRecord], after: Iterable[RolloutRecord]) -> str | None:
    """A held-out problem that was wrong and is right now, in a sentence."""
    wrong = {r.problem_id: r for r in before if r.split == "eval" and not is_right(r)}
    for record in after:
        if record.split == "eval" and is_right(record) and record.problem_id in wrong:
            was, now = answer(wrong[record.problem_id]), answer(record)
            return f"{clean(question(record), 60)} was {clean(was, 24)}, now {clean(now, 24)}"
    return None


def is_right(record: RolloutRecord) -> bool:
    return record.metrics.get("correct", record.reward or 0.0) > 0


def row(group: Sequence[RolloutRecord], width: int) -> Text:
    """One line: question, ■ right and □ wrong (× failed), a wrong and a right answer."""
    asked = clean(question(group[0]))
    room = min(max(width // 3, 12), 40)
    asked = asked if len(asked) <= room else "…" + asked[-(room - 1) :]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{asked:<{room}}  ")
    for record in group[:16]:
        mark = "×" if record.error is not None else "■" if is_right(record) else "□"
        text.append(f"{mark} ", style="green" if mark == "■" else "dim")
    text.append("… " if len(group) > 16 else "")
    if _alike(group):
        text.append("  no signal: all alike", style="dim")
        if not is_right(group[0]):
            text.append(f'  "{clean(answer(group[0]), 24)}"', style="dim")
        return text
    for word, right in (("wrong", False), ("right", True)):
        shown = next((r for r in group if r.error is None and is_right(r) is right), None)
        if shown is not None:
            advantage = "" if shown.advantage is None else f" {signed(shown.advantage)}"
            text.append(f'  {word}: "{clean(answer(shown), 24)}"{advantage}')
    return text


def untrained(record: RolloutRecord, width: int) -> Text:
    """A held-out answer before any training, beside the right one."""
    logs = record.turns[-1].get("logs", {}) if record.turns else {}
    text = Text(
        f"before   {clean(question(record), width // 2)}", no_wrap=True, overflow="ellipsis"
    )
    text.append(f'  it says "{clean(answer(record), 24)}"')
    if not is_right(record) and (expected := logs.get("expected")):
        text.append(f', right is "{clean(expected, 24)}"')
    return text


def transcript(group: Sequence[RolloutRecord], width: int) -> list[Text]:
    """A problem and each of its answers on a line of its own."""
    lines = [Text(clean(question(group[0]), width), style="bold", no_wrap=True)]
    for record in group:
        reward = "failed" if record.reward is None else f"{record.reward:.2f}"
        advantage = "" if record.advantage is None else f" {signed(record.advantage)}"
        mark = "×" if record.error is not None else "■" if is_right(record) else "□"
        said = clean(answer(record), max(width - 24, 8))
        lines.append(Text(f"  {mark} {reward:>6}{advantage:>7}  {said}", no_wrap=True))
    return lines


def _alike(group: Sequence[RolloutRecord]) -> bool:
    return len({record.reward for record in group}) <= 1
