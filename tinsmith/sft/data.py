"""Conversations to training data: exact tokens, which of them are learnt, and in what order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tinsmith.chat.render import Message, Renderer
from tinsmith.rl.policy import derive_seed
from tinsmith.sft.config import SftConfig
from tinsmith.sft.conversations import BadLine, Conversation, answers_in, keys_of

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class TokenSequence:
    """Tokens the model sees as one; `said_T` marks those it learns to say."""

    tokens_T: NDArray[np.int32]
    said_T: NDArray[np.bool_]

    @property
    def trained(self) -> int:
        """Learnt tokens. The first token of all is predicted from nothing and never counts."""
        return int(self.said_T[1:].sum())

    def datum(self, weight: float) -> tinker.Datum:
        """Position i of the input predicts token i + 1; each learnt token has the same weight."""
        import tinker

        weights = self.said_T[1:].astype(np.float32) * np.float32(weight)
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(self.tokens_T[:-1].tolist()),
            loss_fn_inputs={
                "target_tokens": self.tokens_T[1:].astype(np.int64),  # type: ignore[dict-item]
                "weights": weights,  # type: ignore[dict-item]
            },
        )


@dataclass(frozen=True)
class Example:
    """One conversation: a single sequence where each turn continues the one before, else several."""

    line: int
    sequences: tuple[TokenSequence, ...]


@dataclass(frozen=True)
class Examples:
    """What came out of rendering, and what was lost on the way."""

    examples: list[Example]
    cut: int = 0  # conversations whose end was cut off
    too_long: int = 0  # left out for their length
    bad: list[BadLine] = field(default_factory=list[BadLine])  # refused by the chat template


def split(
    conversations: Sequence[Conversation], config: SftConfig
) -> tuple[list[Conversation], list[Conversation]]:
    """To train on, and held out. Copies of a held-out conversation are not trained on either."""
    keys = keys_of(conversations)
    distinct = sorted(set(keys))
    wanted = min(math.ceil(config.held_out * len(distinct)), config.eval_size, len(distinct) - 1)
    chosen = random.Random(derive_seed(config.seed, "held out")).sample(distinct, max(wanted, 0))
    held, seen = set(chosen), set[str]()
    train: list[Conversation] = []
    held_out: list[Conversation] = []
    for key, conversation in zip(keys, conversations, strict=True):
        if key not in held:
            train.append(conversation)
        elif key not in seen:
            held_out.append(conversation)
            seen.add(key)
    return train, held_out


def render(
    conversations: Sequence[Conversation],
    renderer: Renderer,
    config: SftConfig,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Examples:
    """Every conversation as tokens. One the chat template refuses is a bad line."""
    import jinja2

    examples: list[Example] = []
    bad: list[BadLine] = []
    cut = too_long = 0
    for done, conversation in enumerate(conversations, start=1):
        on_done(done, len(conversations))
        try:
            whole = _turns(conversation.messages, renderer, config.train_on)
        except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())
            bad.append(BadLine(conversation.line, f"the chat template refuses it ({reason})"))
            continue
        kept = [_cut(sequence, config.max_length) for sequence in whole]
        shortened = any(len(k.tokens_T) < len(w.tokens_T) for k, w in zip(kept, whole, strict=True))
        kept = [sequence for sequence in kept if sequence.trained]
        if not kept or (shortened and config.too_long == "skip"):
            too_long += 1
            continue
        cut += shortened
        examples.append(Example(conversation.line, tuple(kept)))
    return Examples(examples, cut, too_long, bad)


def _turns(messages: Sequence[Message], renderer: Renderer, train_on: str) -> list[TokenSequence]:
    """What the assistant says, each time after exactly what it would have been shown.

    Most templates only ever append, and all turns share one sequence. Some rewrite the past (they
    drop old reasoning): a turn that does not begin with the sequence so far begins a new one.
    """
    said_at = answers_in(messages)
    turns = said_at if train_on == "all_assistant" else said_at[-1:]
    sequences: list[tuple[list[int], list[bool]]] = []
    for at in turns:
        reply = renderer.reply(messages[: at + 1])
        length = len(sequences[-1][0]) if sequences else 0
        if length and reply.tokens_T[:length] == sequences[-1][0]:
            sequences[-1][0].extend(reply.tokens_T[length:])
            sequences[-1][1].extend(reply.said_T[length:])
        else:
            sequences.append((list(reply.tokens_T), list(reply.said_T)))
    return [TokenSequence(np.array(t, np.int32), np.array(s, np.bool_)) for t, s in sequences]


def _cut(sequence: TokenSequence, most: int) -> TokenSequence:
    return TokenSequence(sequence.tokens_T[:most], sequence.said_T[:most])


class Batches:
    """Which conversations each step trains on: every one once an epoch, in an order of the epoch's own.

    The last batch of an epoch has what is left. A step's batch depends on nothing but its number, so
    a run that goes on continues exactly.
    """

    def __init__(self, examples: Sequence[Example], batch_size: int, seed: int) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self.per_epoch = steps_per_epoch(len(examples), batch_size)
        self._epoch = -1
        self._order: list[int] = []  # of the epoch last asked for

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, step: int) -> list[Example]:
        """The conversations of step 1, 2, ..."""
        epoch, at = divmod(step - 1, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._examples)))
            random.Random(derive_seed(self._seed, "epoch", epoch)).shuffle(self._order)
        start = at * self._batch_size
        return [self._examples[at] for at in self._order[start : start + self._batch_size]]


def steps_per_epoch(conversations: int, batch_size: int) -> int:
    return math.ceil(conversations / batch_size)


def total_steps(config: SftConfig, conversations: int) -> int:
    """How many steps the run has with so many conversations to train on."""
    if config.num_batches is not None:
        return config.num_batches
    return config.num_epochs * steps_per_epoch(conversations, config.batch_size)


def sequences_of(examples: Sequence[Example]) -> list[TokenSequence]:
    return [sequence for example in examples for sequence in example.sequences]


def logprobs_of(output: tinker.ForwardBackwardOutput) -> list[NDArray[Any]]:
    """Per sequence, the log-probability of each target token."""
    return [np.asarray(one["logprobs"].to_numpy()) for one in output.loss_fn_outputs]
