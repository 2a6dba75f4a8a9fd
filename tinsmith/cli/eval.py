"""`tinsmith eval WHAT key=value ...`: tries held-out problems with a run, saved weights, a model or an endpoint."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinsmith import __version__, settings
from tinsmith.cli.config import flat, keys, parse_into, reproducing_command
from tinsmith.cli.config_help import HELP_WORDS, help_text
from tinsmith.cli.session import session
from tinsmith.cli.subject import CHOICES, Subject, find_run, find_subject, inherited, open_sampler
from tinsmith.errors import ConfigError
from tinsmith.rl.eval_config import EvalConfig

if TYPE_CHECKING:
    import tinker

    from tinsmith.chat.render import Renderer
    from tinsmith.records.evaluation import EvalResult
    from tinsmith.records.rollout import RolloutRecord
    from tinsmith.rl.types import Metrics, Policy

HEAD = (
    "tinsmith eval WHAT key=value ...   try held-out problems\n\n"
    "WHAT is a run by its name or directory (its last checkpoint, or step=N, or step=best), a tinker:// path, a\n"
    "base model, or the address of an OpenAI-compatible endpoint (https://host/v1 with model=NAME; its key is\n"
    "read from OPENAI_API_KEY). A run is tried with its own settings unless others are given."
)


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or any(word in HELP_WORDS for word in words):
        print(help_text(words, EvalConfig, HEAD, "what to evaluate"))
        return 0
    what, given = _what(words)
    known = [key.name for key in keys(EvalConfig)]
    earlier = find_run(what)
    words = [*(inherited(earlier, known, given) if earlier else []), *given]
    config = parse_into(EvalConfig, words, "eval")
    subject = find_subject(what, config.step)
    result, rollouts = _evaluated(subject, config, _command(subject, config, given))
    folder = _write(subject, config, result, rollouts)
    if config.json:
        shown = {**result.to_json(), "directory": str(folder)}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        from tinsmith.cli.eval_report import report

        print("\n".join([*report(result, rollouts, config.show), f"files    {folder}"]))
    return 0


def _what(words: Sequence[str]) -> tuple[str, list[str]]:
    """The subject and the settings after it."""
    first = words[0]
    setting = first.startswith("-") or ("=" in first and "://" not in first)
    if setting and not Path(first).exists():
        raise ConfigError(f"what to evaluate comes first (got {first!r}). {CHOICES}.")
    return first, list(words[1:])


def _command(subject: Subject, config: EvalConfig, given: Sequence[str]) -> list[str]:
    """The words that do the same again from any directory."""
    command = [word for word in reproducing_command(config, given, "eval") if word != "json=true"]
    return [*command[:2], subject.reference, *command[2:]]


def _evaluated(
    subject: Subject, config: EvalConfig, command: list[str]
) -> tuple[EvalResult, list[RolloutRecord]]:
    from tinsmith.records.evaluation import EvalResult

    now = time.time()
    if subject.kind == "endpoint":
        metrics, rollouts = asyncio.run(_try_endpoint(subject, config))
        subject = replace(subject, name=subject.reference, base_model=config.model)
    else:
        with session(config.base_url) as working:
            metrics, rollouts = working.run(_try_sampler(working.service, subject, config))
    result = EvalResult(
        kind=subject.kind,
        name=subject.name,
        step=subject.step,
        model_path=subject.model_path,
        model=subject.base_model,
        config=flat(config),
        command=command,
        metrics=metrics,
        seconds=round(metrics.pop("time/eval"), 3),
        created_at=now,
        versions={"tinsmith": __version__},
    )
    return result, rollouts


async def _try_sampler(
    service: tinker.ServiceClient, subject: Subject, config: EvalConfig
) -> tuple[Metrics, list[RolloutRecord]]:
    from tinsmith.rl.policy import SamplerPolicy

    client, renderer = await open_sampler(service, subject)
    policy = SamplerPolicy(client, version=subject.step, temperature=config.temperature)
    return await _try(policy, renderer, config)


async def _try_endpoint(
    subject: Subject, config: EvalConfig
) -> tuple[Metrics, list[RolloutRecord]]:
    from tinsmith.rl.endpoint import EndpointPolicy, EndpointRenderer
    from tinsmith.rl.endpoint_http import ANSWER_SECONDS, Endpoint

    endpoint = Endpoint(
        subject.name,
        config.model or "",
        settings.openai_api_key(),
        requests=config.requests,
        answer_seconds=config.rollout.seconds or ANSWER_SECONDS,
    )
    async with endpoint:
        offered = await endpoint.models()
        if not config.model:
            names = f"it offers {', '.join(offered[:12])}" if offered else "it does not say which"
            raise ConfigError(f"an endpoint needs model=NAME; {names}.")
        renderer = EndpointRenderer()
        policy = EndpointPolicy(endpoint, renderer, config.temperature)
        metrics, rollouts = await _try(policy, renderer, config)
    if not policy.counted:
        metrics.pop("eval/tokens", None)
    return metrics, [_without_tokens(record) for record in rollouts]


def _without_tokens(record: RolloutRecord) -> RolloutRecord:
    """An endpoint's tokens are made up: its text alone is worth keeping."""
    for turn in record.turns:
        turn.pop("tokens", None)
        turn.pop("logprobs", None)
    return record


async def _try(
    policy: Policy, renderer: Renderer, config: EvalConfig
) -> tuple[Metrics, list[RolloutRecord]]:
    """Evaluate, with a line that says how far it is; RunError when not one rollout ended.

    The metrics hold its duration, time/eval, too.
    """
    from tinsmith.cli.eval_report import ProgressLine
    from tinsmith.rl.evaluate import eval_metrics, evaluate
    from tinsmith.rl.rollouts import refuse_all_failed
    from tinsmith.rl.transcripts import to_records
    from tinsmith.rl.waiting import in_thread, timed

    held_out = await in_thread(lambda: config.env.build(renderer, config.seed, "eval"))
    values: Metrics = {}
    line = ProgressLine()
    try:
        trying = evaluate(config, held_out, policy, on_done=line)
        groups_P = await timed("time/eval", trying, values)
    finally:
        line.clear()
    refuse_all_failed(groups_P)
    records = to_records(groups_P, None, renderer, policy.version, "eval")
    return values | eval_metrics(groups_P), records


def _write(
    subject: Subject,
    config: EvalConfig,
    result: EvalResult,
    rollouts: Sequence[RolloutRecord],
) -> Path:
    """Put the result where it belongs: into the run, where it was asked for, or a new directory."""
    from tinsmith.records.evaluation import write_evaluation
    from tinsmith.runs.naming import claim_directory

    if config.log_path is not None:
        directory = Path(config.log_path).expanduser().resolve()
    elif subject.run is not None:
        directory = subject.run.directory
    else:
        directory = claim_directory(random.Random(), settings.runs_directory())
    return write_evaluation(directory, result, rollouts)
