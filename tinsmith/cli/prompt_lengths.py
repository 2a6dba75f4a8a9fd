"""The problems that a run would see and how long their prompts are, without a service."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tinsmith.cli.model_size import local_directory
from tinsmith.rl.config import TrainConfig

if TYPE_CHECKING:
    from tinsmith.chat.render import Message, Renderer
    from tinsmith.chat.turns import Observation
    from tinsmith.rl.types import ProblemSource

SAMPLE = 64  # prompts that are measured
CHARACTERS_A_TOKEN = 4
TOKENS_A_MESSAGE = 8  # what a template puts around it


@dataclass(frozen=True)
class Problems:
    train: int
    held_out: int
    mean_prompt: float  # tokens, over the sample
    longest_prompt: int
    how: str  # in words: measured or guessed


class GuessingRenderer:
    """For a tokenizer that is not here: as many tokens as English text would have."""

    def prompt(self, messages: Sequence[Message]) -> Observation:
        from tinsmith.chat.turns import Observation

        characters = sum(len(message["content"]) for message in messages)
        tokens = math.ceil(characters / CHARACTERS_A_TOKEN) + TOKENS_A_MESSAGE * len(messages)
        return Observation([0] * tokens)


def measure(config: TrainConfig) -> Problems:
    """Loads the dataset; what the environment says when it cannot is passed on."""
    directory = local_directory(config.model_name)
    renderer = _renderer(directory, config.model_name) if directory else None
    used = renderer or cast("Renderer", GuessingRenderer())
    train = config.env.build(used, config.seed, "train")
    held_out = config.env.build(used, config.seed, "eval")
    lengths = asyncio.run(_lengths(train, min(SAMPLE, len(train))))
    if renderer is not None:
        how = f"measured on {len(lengths)} prompts with the model's own tokenizer"
    else:
        how = f"guessed from the characters of {len(lengths)} prompts: the model's tokenizer is not here"
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return Problems(len(train), len(held_out), mean, max(lengths, default=0), how)


def _renderer(directory: Path, model_name: str) -> Renderer | None:
    """The model's way of writing prompts; None when its tokenizer cannot be loaded from the disk."""
    from transformers import AutoTokenizer

    from tinsmith.chat.render import make_renderer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError):
        return None
    return make_renderer(tokenizer, model_name)


async def _lengths(source: ProblemSource, count: int) -> list[int]:
    lengths: list[int] = []
    for position in range(count):
        group = source.problem(position)
        try:
            (env,) = await group.make_envs(1)
            lengths.append(len((await env.initial_observation()).tokens_T))
        finally:
            await group.cleanup()
    return lengths
