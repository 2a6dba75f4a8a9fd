"""Grades the corpus and prints its accuracy by category, the slowest grade and the workers' peak memory.

Times are processor time, of this process and of the worker together.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections import defaultdict
from pathlib import Path

from tinsmith.envs.grading.math import ALGEBRA, grade_math
from tinsmith.envs.grading.pool import Pool

CORPUS = Path(__file__).parents[1] / "tests/unit/envs/grading/corpus.py"


def corpus():
    spec = importlib.util.spec_from_file_location("corpus", CORPUS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["corpus"] = module
    spec.loader.exec_module(module)
    return module.cases()


async def main() -> int:
    limits, rows = ALGEBRA.limits, corpus()
    pool = Pool(ALGEBRA)
    tally: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    surprises = 0
    for case in rows:
        begun = time.process_time() + pool.usage.processor_seconds
        grade = await grade_math(case.reply, case.expected, pool)
        seconds = time.process_time() + pool.usage.processor_seconds - begun
        good = grade.correct == case.right
        tally[case.category].append((good, seconds))
        if good == case.missed:
            surprises += 1
            verb = "accepted" if grade.correct else "refused"
            print(f"  {verb}: {case.reply[:80]!r} for {case.expected!r} {grade.note}")
    print("| category | pairs | right | accuracy | slowest grade |")
    print("|---|---|---|---|---|")
    for name, results in [*tally.items(), ("all", [r for rs in tally.values() for r in rs])]:
        right = sum(good for good, _ in results)
        slowest = max(seconds for _, seconds in results)
        print(
            f"| {name} | {len(results)} | {right} | {right / len(results):.1%} | {slowest:.2f} s |"
        )
    usage = pool.usage
    print(
        f"\n{usage.questions} of {len(rows)} needed algebra; {usage.started} workers were started, "
        f"{usage.killed} ended by a question; peak memory of a worker {usage.peak_bytes / 2**20:.0f} MiB "
        f"(limit {limits.memory_bytes / 2**20:.0f} MiB of address space); limit of a question "
        f"{limits.processor_seconds:g} s of processor time."
    )
    pool.close()
    return int(surprises > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
