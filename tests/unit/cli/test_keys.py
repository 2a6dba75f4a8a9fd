"""`tinsmith keys`: made once, listed without secrets, revoked; private files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tinsmith.cli import keys
from tinsmith.errors import ConfigError
from tinsmith.service.store.keys import KeyRing
from tinsmith.service.store.store import Store


def typed(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    assert keys.run(list(argv)) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_key_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "service"
    place = ("--directory", str(home))
    out, err = typed(capsys, "create", "laptop", "--owner", "ann", *place)
    secret = out.strip()
    assert out == f"{secret}\n", "nothing else, so that a shell can take it"
    assert secret.startswith("tml-")
    assert "not shown again" in err
    listed, _ = typed(capsys, "list", *place)
    assert "laptop" in listed
    assert "ann" in listed
    assert "never" in listed
    assert secret not in listed
    assert stat.S_IMODE((home / keys.DATABASE).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_key_is_revoked_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--directory", str(tmp_path))
    secret = typed(capsys, "create", "a", *place)[0].strip()
    store = Store.open(tmp_path / keys.DATABASE)  # a service that runs meanwhile
    ring = KeyRing(store)
    found = ring.find(secret)
    assert found is not None
    assert "is revoked" in typed(capsys, "revoke", str(found.id), *place)[0]
    assert ring.find(secret) is None
    store.close()
    assert "revoked just now" in typed(capsys, "list", *place)[0]


def test_no_keys_is_a_sentence_and_makes_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = typed(capsys, "list", "--directory", str(tmp_path))
    assert "tinsmith keys create" in out
    assert not list(tmp_path.iterdir())


def test_the_service_of_this_home_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path))
    typed(capsys, "create", "a")
    assert (tmp_path / "service" / keys.DATABASE).exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["create"], "NAME"),
        (["create", "a b"], "cannot be used"),
        (["revoke", "x"], "integer"),
        (["revoke", "7"], "no key 7"),
        (["remove"], "remove"),
        (["list", "--all"], "--all"),
    ],
)
def test_mistakes_are_sentences(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        keys.run(argv)


def test_an_unusable_directory_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        keys.run(["create", "a", "--directory", str(tmp_path / "file" / "below")])
