"""What a word on the command line stands for: a run's checkpoint, saved weights, a base model, an endpoint."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tinsmith import settings
from tinsmith.cli.start import check_model_name
from tinsmith.errors import ConfigError, ModelError, RunError
from tinsmith.records.reader import CheckpointRecord, RunReader
from tinsmith.rl.config import absolute
from tinsmith.rl.eval_config import BEST
from tinsmith.runs.manager import Run, RunManager

if TYPE_CHECKING:
    import tinker

    from tinsmith.chat.render import Renderer

SCHEME = "tinker://"
BARE_MODELS = ("smollm2",)  # names of base models that have no slash in them
CHOICES = (
    f"Give a run (`tinsmith runs` lists yours), a {SCHEME} path, a base model such as "
    f"{settings.EMBEDDED_MODEL}, or the address of an OpenAI-compatible endpoint"
)


@dataclass(frozen=True)
class Subject:
    """Who is going to speak. A run has a run and a step, an endpoint only a name: its address."""

    kind: Literal["run", "weights", "model", "endpoint"]
    name: str
    model_path: str | None = None  # of saved weights
    base_model: str | None = None
    run: Run | None = None
    step: int = 0  # updates done before its weights were saved

    @property
    def title(self) -> str:
        return f"{self.name} step {self.step}" if self.run else self.name

    @property
    def reference(self) -> str:
        """What finds it again from any directory. A password in an address is no part of it."""
        if self.run is not None:
            return str(self.run.directory)
        if self.kind == "endpoint":
            from tinsmith.rl.endpoint_http import shown_url

            return shown_url(self.name)
        return self.model_path or self.base_model or self.name


def find_subject(what: str, step: str | None = None) -> Subject:
    """The subject of this name; `step` chooses among the checkpoints of a run."""
    subject = _find(what, step)
    if step is not None and subject.kind != "run":
        raise ConfigError(f"step={step} needs a run, and {what} is none. Leave it out.")
    return subject


def find_run(what: str) -> Run | None:
    """The run of this name; None when it names something else."""
    try:
        return None if "://" in what else RunManager().get(what)
    except RunError as error:
        if _can_be_model(what):
            return None
        if "Did you mean" in str(error):
            raise
        raise RunError(
            f"there is no run {what!r}, and no model can have that name. {CHOICES}."
        ) from None


def _find(what: str, step: str | None) -> Subject:
    if what.startswith(("http://", "https://")):
        _check_address(what)
        return Subject("endpoint", what)
    if what.startswith(SCHEME):
        return Subject("weights", what, model_path=what)
    run = find_run(what)
    if run is None:
        check_model_name(what)
        return Subject("model", what, base_model=absolute(what))
    checkpoint = _checkpoint(run, step)
    model = run.info.config.get("model_name")
    return Subject(
        "run",
        run.name,
        model_path=checkpoint.sampler_path,
        base_model=model if isinstance(model, str) else None,
        run=run,
        step=checkpoint.step,
    )


def _check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        right = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # of the port, or of brackets
        right = False
    if not right:
        raise ConfigError(f"{url!r} is no address; expected one such as https://host/v1.")


def _can_be_model(name: str) -> bool:
    path = Path(name).expanduser()
    if path.is_dir():
        return (path / "config.json").exists()
    named = name in BARE_MODELS or path.is_file() or name == settings.EMBEDDED_MODEL
    hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    return named or hub_id


def _checkpoint(run: Run, step: str | None) -> CheckpointRecord:
    """The last checkpoint whose weights can be sampled from, or the one that was asked for."""
    reader = RunReader(run.directory)
    saved = {c.step: c for c in reader.checkpoints() if c.sampler_path}
    if not saved:
        raise RunError(
            f"{run.name} has saved no checkpoint yet. It saves one every save_every steps and at its end."
        )
    if step is None:
        return saved[max(saved)]
    if step == BEST:
        return _best(reader, saved)
    if int(step) not in saved:
        known = ", ".join(map(str, sorted(saved)))
        raise ConfigError(f"{run.name} has no checkpoint of step {step}; it has {known}, and best.")
    return saved[int(step)]


def _best(reader: RunReader, saved: Mapping[int, CheckpointRecord]) -> CheckpointRecord:
    best = reader.best_checkpoint()
    if best is None or best.step not in saved:
        raise ConfigError(
            "no saved step of this run was tried on held-out problems, so none is known to be best. "
            f"Name a step ({', '.join(map(str, sorted(saved)))}), or train with eval_every."
        )
    return saved[best.step]


def inherited(run: Run, known: Sequence[str], given: Sequence[str]) -> list[str]:
    """The words of a run's command that are settings here too; those of its environment only as a whole."""
    other_env = any(word.lstrip("-").startswith("env=") for word in given)
    words: list[str] = []
    for word in run.info.command[2:]:
        name, _, _ = word.partition("=")
        of_env = name == "env" or name.startswith("env.")
        # `known` cannot list the keys of every environment.
        if (of_env and not other_env) or (not of_env and name in known):
            words.append(word)
    return words


async def open_sampler(
    service: tinker.ServiceClient, subject: Subject
) -> tuple[tinker.SamplingClient, Renderer]:
    """A client that samples from the subject, and how to write to it."""
    import tinker

    from tinsmith.chat.render import make_renderer
    from tinsmith.rl.failures import explain
    from tinsmith.rl.waiting import in_thread

    base = None if subject.model_path else subject.base_model
    try:
        # In a thread: the SDK's asynchronous form of this call blocks the event loop.
        client = await in_thread(
            lambda: service.create_sampling_client(model_path=subject.model_path, base_model=base)
        )
        name = subject.base_model or await client.get_base_model_async()
    except (tinker.TinkerError, ValueError) as error:
        raise ModelError(f"{subject.title} cannot be used: {explain(error)}") from error
    try:
        tokenizer = await in_thread(client.get_tokenizer)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the tokenizer of {name} cannot be loaded: {error}. Check the name, and the network when it "
            "is a model on the hub."
        ) from error
    return client, make_renderer(tokenizer, name)
