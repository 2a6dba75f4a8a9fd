"""`tinsmith chat WHAT`: talk to the model of a run, to saved weights or to a base model."""

from __future__ import annotations

import random
import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from tinsmith.cli.options import run_command
from tinsmith.cli.session import session
from tinsmith.cli.subject import Subject, find_subject, open_sampler
from tinsmith.cli.terminal import clean
from tinsmith.errors import ConfigError, ServiceError
from tinsmith.rl.eval_config import check_step

if TYPE_CHECKING:
    from tinsmith.chat.render import Message, Renderer
    from tinsmith.rl.types import Action, Observation, Policy

T = TypeVar("T")

YOU = "you> "
COMMANDS = "/reset begins anew, /quit or Ctrl-D leaves"


@click.command(
    help="Talk to a model.\n\nWHAT is a run by its name or directory (its last checkpoint), a tinker:// path, or a "
    f"base model.\n\nWhile talking: {COMMANDS}."
)
@click.argument("what")
@click.option("--step", help="Of a run: the checkpoint of this step, or best. [default: the last]")
@click.option("--once", metavar="TEXT", help="Say this, print the answer and leave.")
@click.option("--system", metavar="TEXT", help="A system message to begin with.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    help="Of sampling; 0 always takes the likeliest token. [default: the run's own, else 1]",
)
@click.option(
    "--max-tokens",
    default=512,
    show_default=True,
    type=click.IntRange(min=1),
    help="Longest answer.",
)
@click.option("--seed", type=click.IntRange(min=0), help="The same answers each time.")
@click.option(
    "--base-url",
    help="Service: local, a URL, or hosted. [default: the run's own, else this machine's]",
)
def command(
    what: str,
    step: str | None,
    once: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int,
    seed: int | None,
    base_url: str | None,
) -> int:
    check_step(step)
    subject = find_subject(what, step)
    if subject.kind == "endpoint":
        raise ConfigError(
            "chat talks to models on a Tinker service; give a run, a tinker:// path or a base model. "
            "`tinsmith eval` also takes endpoints."
        )
    heat = _setting(subject, "temperature", temperature, 1.0)
    with session(_setting(subject, "base_url", base_url, None)) as working:
        client, renderer = working.run(open_sampler(working.service, subject))
        from tinsmith.rl.policy import SamplerPolicy

        policy = SamplerPolicy(client, version=subject.step, temperature=heat)
        first = random.SystemRandom().getrandbits(32) if seed is None else seed
        talk = Conversation(policy, renderer, max_tokens, first, system)
        if once is not None:
            print(shown(working.run(talk.say(once))))
            return 0
        _loop(working, talk, subject)
    return 0


def run(argv: Sequence[str]) -> int:
    return run_command(command, "chat", argv)


def _setting(subject: Subject, name: str, given: object, usual: object) -> Any:
    """What was asked for, else the run's own."""
    if given is not None:
        return given
    return subject.run.info.config.get(name, usual) if subject.run else usual


class Conversation:
    """What was said so far. A turn that fails leaves it as it was."""

    def __init__(
        self, policy: Policy, renderer: Renderer, max_tokens: int, seed: int, system: str | None
    ) -> None:
        self._policy = policy
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._seed = seed
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self.cut_off = False  # whether the last answer was
        self.reset()

    def reset(self) -> None:
        self._messages = list(self._start)
        self._last: tuple[Observation, Action] | None = None

    async def say(self, text: str) -> str:
        """The model's answer. ServiceError in a sentence when there is none."""
        import tinker

        from tinsmith.rl.failures import explain
        from tinsmith.rl.policy import derive_seed

        asked: Message = {"role": "user", "content": text}
        observation = self._next(asked)
        seed = derive_seed(self._seed, len(self._messages))
        try:
            (action,) = await self._policy(
                observation, max_tokens=self._max_tokens, samples=1, seed=seed
            )
        except (tinker.TinkerError, ValueError) as error:
            raise ServiceError(f"no answer came: {explain(error)}") from error
        answer = self._renderer.parse(action)
        self._messages += [asked, {"role": "assistant", "content": answer}]
        self._last = (observation, action)
        self.cut_off = action.stop_reason == "length"
        return answer

    def _next(self, asked: Message) -> Observation:
        """The conversation with another message: by its own tokens, or written anew where that cannot be."""
        if self._last is not None and not self.cut_off:
            extended = self._renderer.extend(*self._last, [asked])
            if extended is not None:
                return extended
        return self._renderer.prompt([*self._messages, asked])


class Working(Protocol):
    def run(self, work: Coroutine[Any, Any, T]) -> T: ...


def _loop(working: Working, talk: Conversation, subject: Subject) -> None:
    """Read, answer, print, until the other side leaves."""
    talking = sys.stdin.isatty()
    if talking:
        import readline  # noqa: F401  gives input() editing and a history

        print(f"{clean(subject.title)} · {COMMANDS}", file=sys.stderr)
    while True:
        try:
            text = input(YOU if talking else "").strip()
        except (EOFError, KeyboardInterrupt):
            if talking:
                print(file=sys.stderr)
            return
        if text in ("/quit", "/exit"):
            return
        if text == "/reset":
            talk.reset()
            print("the conversation begins anew", file=sys.stderr)
        elif text.startswith("/"):
            print(f"there is no {clean(text.split()[0])}: {COMMANDS}", file=sys.stderr)
        elif text:
            _answer(working, talk, text)


def _answer(working: Working, talk: Conversation, text: str) -> None:
    try:
        print(shown(working.run(talk.say(text))), flush=True)
    except KeyboardInterrupt:
        print("\nstopped; the conversation is as it was before", file=sys.stderr)
        return
    except ServiceError as error:
        print(f"tinsmith: {error}", file=sys.stderr)
        return
    if talk.cut_off:
        print("(cut off: --max-tokens allows longer answers)", file=sys.stderr)


def shown(text: str) -> str:
    """A model's words, harmless to a terminal, on as many lines as they had."""
    return "\n".join(clean(line) for line in text.split("\n"))
