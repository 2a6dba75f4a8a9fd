"""Log lines: one an event, with the request they belong to, without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tinsmith.service import logs
from tinsmith.service.wire import types


@pytest.fixture
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("tinsmith")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


@pytest.fixture
def request_facts() -> Iterator[logs.RequestFacts]:
    facts = logs.RequestFacts("abc123", owner="ann")
    token = logs.REQUEST.set(facts)
    yield facts
    logs.REQUEST.reset(token)


def written(form: logs.Format, level: str, record: object) -> str:
    stream = io.StringIO()
    logs.set_up(form, level, stream)
    record()  # type: ignore[operator]
    return stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_json_lines_carry_the_request(request_facts: logs.RequestFacts) -> None:
    logs.note(types.SessionHeartbeat(session_id="s1"))

    def record() -> None:
        logging.getLogger("tinsmith.x").info("did %s", "it", extra={"status": "200"})

    line = json.loads(written("json", "info", record))
    assert line["message"] == "did it"
    assert line["level"] == "info"
    assert line["time"].endswith("Z")
    assert (line["request_id"], line["owner"], line["session"]) == ("abc123", "ann", "s1")
    assert line["status"] == "200"


@pytest.mark.usefixtures("restored", "request_facts")
def test_errors_carry_their_traceback_and_request() -> None:
    def record() -> None:
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("tinsmith.x").exception("a request failed")

    line = json.loads(written("json", "warning", record))
    assert line["request_id"] == "abc123"
    assert "ValueError: broken" in line["error"]
    text = written("text", "warning", record)
    assert "ERROR   a request failed request_id=abc123 owner=ann\n" in text


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("form", ["text", "json"])
def test_keys_are_never_written(form: logs.Format) -> None:
    def record() -> None:
        logging.getLogger("tinsmith").error(
            "key tml-abcdefghijklmnop or eyJhbGciOiJIUzI1NiJ9.e30.x"
        )

    text = written(form, "error", record)
    assert "abcdefgh" not in text
    assert "hbGci" not in text
    assert text.count("[hidden]") == 2


@pytest.mark.usefixtures("restored")
def test_what_clients_send_stays_in_its_line() -> None:
    def record() -> None:
        logging.getLogger("tinsmith").error("path %s", "a\nERROR forged\x1b[2J")

    text = written("text", "error", record)
    assert text.count("\n") == 1
    assert "\x1b" not in text


@pytest.mark.usefixtures("restored")
def test_levels_are_kept_and_libraries_are_quiet() -> None:
    def record() -> None:
        logging.getLogger("tinsmith").info("no")
        logging.getLogger("some.library").info("no")
        logging.getLogger("some.library").warning("yes")

    assert written("text", "warning", record).count("\n") == 1


@pytest.mark.parametrize("given", [None, b"", b"a b", b"x" * 200, b"a\n", "é".encode(), b'a"b'])
def test_insane_request_ids_are_replaced(given: bytes | None) -> None:
    made = logs.request_id(given)
    assert len(made) == 16
    assert made != logs.request_id(given)


def test_sane_request_ids_are_kept() -> None:
    assert logs.request_id(b"Run-1.step:2") == "Run-1.step:2"
