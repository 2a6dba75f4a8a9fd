"""A dataset's rows: found, read, filtered, each question once, and split for training and evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from tinsmith import settings
from tinsmith.envs.datasets import files, hub
from tinsmith.envs.datasets.difficulty import Difficulties
from tinsmith.envs.datasets.files import Raw
from tinsmith.envs.datasets.split import hold_out, leave_out, question_key, take
from tinsmith.envs.datasets.table import ANSWERS, QUESTIONS, SOURCES, Source, unnamed
from tinsmith.envs.datasets.text import field, same_question, simple, text
from tinsmith.envs.problem import Row
from tinsmith.errors import ConfigError

Splits: TypeAlias = tuple[list[Row], list[Row]]  # for training, held out
Reading: TypeAlias = Callable[[Sequence[str]], Iterable[Raw | None]]  # the columns wanted -> rows

KEY_DIGITS = 16  # of a question's digest in a row's id
EVAL_SPLITS = ("test", "validation", "eval")  # which split of an unnamed dataset is held out


@dataclass(frozen=True)
class Wanted:
    """Which rows of which dataset; None leaves it to the dataset."""

    dataset: str
    subset: str | None = None
    seed: int = 0
    question: str | None = None
    answer: str | None = None
    train_split: str | None = None
    eval_split: str | None = None
    held_out: float = 0.1
    limit: int | None = None
    difficulty: str | None = None


def load(wanted: Wanted) -> Splits:
    """Training and held-out rows. No question is in both, whatever the files hold."""
    source = _source(wanted)
    name = wanted.dataset if wanted.dataset in SOURCES else _short(wanted.dataset)
    train = _rows(wanted, name, source, _readings(wanted, source, source.train))
    for other in source.without:
        train = leave_out(train, _questions(other, name))
    if source.held_out:
        held_out = _rows(wanted, name, source, _readings(wanted, source, source.held_out))
        train = leave_out(train, {question_key(row.id) for row in held_out})
    else:
        train, held_out = hold_out(train, wanted.held_out, wanted.seed)
    return take(train, wanted.limit, wanted.seed), held_out


def _source(wanted: Wanted) -> Source:
    """The table's line with what the user said otherwise; splits of an unnamed dataset are looked up."""
    source = SOURCES.get(wanted.dataset) or unnamed(wanted.dataset)
    source = replace(
        source,
        question=wanted.question or source.question,
        answer=wanted.answer or source.answer,
        train=(wanted.train_split,) if wanted.train_split else source.train,
        held_out=(wanted.eval_split,) if wanted.eval_split else source.held_out,
    )
    if wanted.dataset in SOURCES:
        part = simple(wanted.subset or "")
        if source.part == "config" and part:
            source = replace(source, configs=(part,))
        return replace(source, train=(part,)) if source.part == "split" and part else source
    source = replace(source, configs=(wanted.subset,))
    if Path(wanted.dataset).is_file():
        return source
    names = _split_names(wanted.dataset, wanted.subset)
    train = source.train or (("train",) if "train" in names else tuple(names[:1]))
    others = [name for name in EVAL_SPLITS if name in names and name not in train]
    return replace(source, train=train, held_out=source.held_out or tuple(others[:1]))


def _short(path: str) -> str:
    """A name for the rows of an unnamed dataset that does not depend on where it lies."""
    return Path(path).stem if Path(path).exists() else path


def _folder(dataset: str) -> Path:
    """Where files of a dataset may lie: the directory given, or the one for files of its name."""
    path = Path(dataset)
    return path if path.is_dir() else settings.datasets_directory() / dataset


def _split_names(dataset: str, subset: str | None) -> list[str]:
    folder = _folder(dataset)
    if folder.is_dir():
        places = [folder / subset] if subset else [folder]
        usual = ("train", *EVAL_SPLITS)
        found = [name for name in usual for place in places if files.find(place, name)]
        if found:
            return found
        if hub.saved(folder):
            return list(hub.read_saved(folder))
    try:
        return hub.split_names(dataset, subset)
    except hub.NotHere as error:
        raise _missing(dataset, unnamed(dataset), ("train",), str(error)) from error


def _readings(wanted: Wanted, source: Source, splits: Sequence[str]) -> Iterator[Reading]:
    """Where the rows of these splits are: a path given, files put beside the runs, else the hub."""
    path = Path(wanted.dataset)
    if wanted.dataset not in SOURCES and path.is_file():
        yield _file(path)
        return
    folder = _folder(wanted.dataset)
    saved = hub.read_saved(folder) if hub.saved(folder) else {}
    # Files of the whole dataset serve for a part of it only when a column tells the parts apart.
    whole = not wanted.subset or source.part_column is not None or source.part == "split"
    lone = not source.held_out and len(source.train) == 1 and not wanted.subset
    for split in splits:
        found = _own_files(folder, split, lone=lone) if whole else []
        if found:
            yield from (_file(file) for file in found)
        elif split in saved:
            yield _data(saved[split])
        else:
            for config in source.configs:
                parts = _own_files(folder / config, split, lone=False) if config else []
                yield from (_file(part) for part in parts)
                if not parts:
                    yield _online(wanted.dataset, source, config, split)


def _own_files(folder: Path, split: str, *, lone: bool) -> list[Path]:
    """Files of a split; a dataset of one split may have it under either usual name."""
    names = (split, "train", "test") if lone else (split,)
    return next((found for name in names if (found := files.find(folder, name))), [])


def _file(path: Path) -> Reading:
    return lambda columns: files.read(path, columns)


def _data(data: Any) -> Reading:
    return lambda columns: hub.only(data, columns)


def _online(dataset: str, source: Source, config: str | None, split: str) -> Reading:
    def reading(columns: Sequence[str]) -> Iterator[Raw]:
        try:
            yield from hub.read(source.hub, config, split, columns)
        except hub.NotHere as error:
            raise _missing(
                dataset, source, (*source.train, *source.held_out), str(error)
            ) from error

    return reading


def _missing(dataset: str, source: Source, splits: Sequence[str], why: str) -> ConfigError:
    """Which files to put where."""
    if Path(dataset).is_dir():
        return ConfigError(f"{dataset} cannot be read: {why}.")
    folder = settings.datasets_directory() / dataset
    names = " and ".join(str(folder / f"{split}.jsonl") for split in dict.fromkeys(splits))
    columns = (
        " and ".join(c for c in (source.question, source.answer) if c) or "question and answer"
    )
    if source.where:
        columns += f" and {source.where[0]}"
    return ConfigError(
        f"the dataset {dataset} is not on this machine, and {source.hub} cannot be fetched: {why}. Put its "
        f"rows, with the columns {columns}, into {names} (.parquet and .csv are read too), or run once "
        "where huggingface.co can be reached."
    )


def _rows(wanted: Wanted, name: str, source: Source, readings: Iterable[Reading]) -> list[Row]:
    """The rows of some files, each question once. Rows without a question or answer are skipped."""
    reader = _Reader(wanted, name, source)
    for reading in readings:
        for raw in reading(reader.columns()):
            reader.add(raw)
    return reader.rows()


class _Reader:
    """Makes rows of raw ones and counts those that cannot be used."""

    def __init__(self, wanted: Wanted, name: str, source: Source) -> None:
        self._name = name
        self._source = source
        part_column = source.part_column if wanted.subset else None
        self._part = (part_column, simple(wanted.subset or "")) if part_column else None
        asked = wanted.difficulty or source.usual_difficulty or "all"
        self._difficulty = None if asked == "all" else Difficulties.parse(asked)
        self._found: dict[str, Row] = {}
        self._names: set[str] = set()
        self.bad = self.unwanted = 0

    def columns(self) -> list[str]:
        """The columns that are read; none when their names are still to be found."""
        source = self._source
        if not source.question or not source.answer:
            return []
        wanted = [source.question.split(".")[0], source.answer.split(".")[0]]
        wanted += [self._part[0]] if self._part else []
        wanted += [source.difficulty] if self._difficulty and source.difficulty else []
        wanted += [source.where[0]] if source.where else []
        return list(dict.fromkeys(wanted))

    def add(self, raw: Raw | None) -> None:
        if raw is None:
            self.bad += 1
            return
        self._names.update(raw)
        if not self._is_wanted(raw):
            self.unwanted += 1
            return
        source = self._source
        question = source.read_question(text(_first(raw, source.question, QUESTIONS)))
        answer = source.read_answer(text(_first(raw, source.answer, ANSWERS)))
        if not question or not answer:
            self.bad += 1
            return
        row_id = f"{self._name}/{same_question(question)[:KEY_DIGITS]}"
        self._found.setdefault(row_id, Row(row_id, question, answer))

    def _is_wanted(self, raw: Raw) -> bool:
        if self._source.where:
            column, value = self._source.where
            held = field(raw, column)
            if value not in (held if isinstance(held, list) else [held]):
                return False
        if self._part and simple(text(field(raw, self._part[0]))) != self._part[1]:
            return False
        column = self._source.difficulty
        return self._difficulty is None or (
            column is not None and field(raw, column) in self._difficulty
        )

    def rows(self) -> list[Row]:
        if self._found:
            if self.bad:
                print(
                    f"{self._name}: {self.bad} rows skipped, which have no question or no answer",
                    file=sys.stderr,
                    flush=True,
                )
            return list(self._found.values())
        if self.unwanted:
            raise ConfigError(
                f"none of the {self.unwanted} rows of {self._name} is of the env.subset and env.difficulty "
                "asked for. Choose others, or leave them out."
            )
        question, answer = self._source.question, self._source.answer
        expected = f"{question or ' or '.join(QUESTIONS)} for the question and {answer or ' or '.join(ANSWERS)} for the answer"
        found = f"the columns {', '.join(sorted(self._names))}" if self._names else "no rows"
        raise ConfigError(
            f"{self._name} has no row that can be used: {self.bad} were read, with {found}. Expected are {expected}; "
            "env.question and env.answer name other columns."
        )


def _first(raw: Raw, column: str, usual: Sequence[str]) -> Any:
    """The column named, or the first of the usual ones that the row has."""
    if column:
        return field(raw, column)
    return next((raw[name] for name in usual if name in raw), None)


def _questions(dataset: str, asking: str) -> set[str]:
    """The keys of all questions of a named dataset, which another one leaves out."""
    try:
        train, held_out = load(Wanted(dataset, held_out=0))
    except ConfigError as error:
        raise ConfigError(f"{asking} leaves out the problems of {dataset}, but {error}") from error
    return {question_key(row.id) for row in (*train, *held_out)}
