"""connect(): one local service for all callers, stale announcements replaced, clear refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from tinsmith import connect as door
from tinsmith import settings
from tinsmith.errors import ConfigError, ServiceError, StorageError

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_service.py")))
STARTER = (
    "import sys; from tinsmith import connect; connect.SERVE = tuple(sys.argv[1:]);"
    "address = connect.find_or_start(); print(address.url, address.pid)"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home whose service is the stand-in; every one that was started is ended."""
    home = tmp_path / "home"
    monkeypatch.setenv("TINSMITH_HOME", str(home))
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setattr(door, "SERVE", STAND_IN)
    yield home
    for pid in starts(home):
        try:
            process = psutil.Process(pid)
            os.kill(pid, signal.SIGKILL)
            process.wait(timeout=10)
        except psutil.NoSuchProcess:
            continue


def starts(home: Path) -> list[int]:
    path = home / "started.txt"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def announce(home: Path, **changes: object) -> None:
    fields = json.loads((home / "service.json").read_text()) | changes
    (home / "service.json").write_text(json.dumps(fields))


def test_the_service_is_started_once_and_found_again(home: Path) -> None:
    assert door.local_service() is None
    said: list[str] = []
    first = door.find_or_start(said.append)
    assert door.find_or_start(said.append) == first == door.local_service()
    assert starts(home) == [first.pid]
    assert len(said) == 1
    assert os.getsid(first.pid) == first.pid, "it must outlive this terminal"
    assert "--idle-seconds 900" in (home / "started.txt").read_text()


def test_starters_at_the_same_moment_share_one_service(home: Path) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, *STAND_IN], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = {starter.communicate(timeout=60)[0] for starter in starters}
    assert len(answers) == 1, answers
    assert len(starts(home)) == 1
    assert f"{starts(home)[0]}" in answers.pop()


def test_a_file_of_a_dead_service_is_replaced(home: Path) -> None:
    first = door.find_or_start()
    process = psutil.Process(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    process.wait(timeout=10)
    assert (home / "service.json").exists()
    assert door.local_service() is None
    second = door.find_or_start()
    assert second.pid != first.pid
    assert door.local_service() == second


@pytest.mark.parametrize(
    "changes",
    [{"started_at": 1.0}, {"pid": os.getpid()}, {"token": "other"}, {"pid": "many"}, {"url": None}],
    ids=["reused-pid", "stranger", "other-token", "damaged", "no-url"],
)
def test_a_file_that_lies_is_replaced(home: Path, changes: dict[str, object]) -> None:
    first = door.find_or_start()
    announce(home, **changes)
    assert door.local_service() is None
    assert door.find_or_start().pid != first.pid


def test_half_a_file_is_no_service(home: Path) -> None:
    home.mkdir()
    (home / "service.json").write_text('{"url": "http://127.')
    assert door.local_service() is None
    assert door.find_or_start().pid in starts(home)


def test_a_live_service_that_does_not_answer_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = door.find_or_start()
    announce(home, url="http://127.0.0.1:9")  # the discard port: nobody there
    monkeypatch.setattr(door, "PROBE_SECONDS", 0.05)
    with pytest.raises(ServiceError, match=f"kill {first.pid}"):
        door.find_or_start()
    assert len(starts(home)) == 1


def test_a_service_that_dies_at_start_shows_its_last_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "service").mkdir(parents=True)
    (home / "service" / "service.log").write_text("from an earlier day\n")
    monkeypatch.setenv("STAND_IN_FAULT", "dies")
    with pytest.raises(ServiceError) as caught:
        door.find_or_start()
    assert "exit code 1" in str(caught.value)
    assert "and the tin is out" in str(caught.value)
    assert "earlier day" not in str(caught.value)
    monkeypatch.delenv("STAND_IN_FAULT")
    assert door.find_or_start(), "the failure must leave no lock and no file behind"


def test_a_home_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(StorageError, match="TINSMITH_HOME"):
        door.find_or_start()


# ── URLs and hosted ──────────────────────────────────────────────────────────────────────────


def test_hosted_needs_a_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="TINKER_API_KEY is not set"):
        door.connect("hosted")
    monkeypatch.setenv("TINKER_API_KEY", "sk-something")
    with pytest.raises(ConfigError, match="begins with `tml-`") as caught:
        door.connect("hosted")
    assert "sk-something" not in str(caught.value)


@pytest.mark.parametrize("target", ["hostd", "127.0.0.1:7411", "ftp://x", "http://", ""])
def test_a_target_that_is_no_url_is_refused(home: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="`local`, `hosted` or a URL"):
        door.connect(target)


def test_a_url_where_nobody_answers_is_refused(home: Path) -> None:
    with pytest.raises(ServiceError, match=r"nothing answers at http://127\.0\.0\.1:9 "):
        door.connect("http://127.0.0.1:9")


def test_a_url_of_some_other_server_is_refused(home: Path) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServiceError, match="not as a Tinker service"):
            door.check_url(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


class Moody(BaseHTTPRequestHandler):
    """Fails in every way that may pass, then answers."""

    moods: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        mood = self.moods.pop(0) if self.moods else "well"
        if mood == "hangs up":
            return
        body = b'{"status": "ok"}'
        self.send_response(int(mood) if mood.isdigit() else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:4] if mood == "breaks off" else body)


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(door, "PAUSES", (0.0, 0.0, 0.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Moody) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("moods", [["hangs up", "429", "503"], ["breaks off", "500", "502"]])
def test_a_url_whose_failures_pass_is_accepted(moody: str, moods: list[str]) -> None:
    Moody.moods = list(moods)
    door.check_url(moody)
    assert Moody.moods == []


def test_a_url_whose_failures_stay_is_refused(moody: str) -> None:
    Moody.moods = ["503"] * 8
    with pytest.raises(ServiceError, match="HTTP 503, 4 times"):
        door.check_url(moody)
    Moody.moods = ["hangs up"] * 4
    with pytest.raises(ServiceError, match="nothing answers"):
        door.check_url(moody)
    Moody.moods = ["breaks off"] * 4
    with pytest.raises(ServiceError, match="broke off"):
        door.check_url(moody)


def test_a_url_is_used_without_any_proxy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = door.find_or_start()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.delenv("TINKER_TELEMETRY", raising=False)
    door.check_target(address.url + "/")
    door.connect(address.url + "/")
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1"
    assert os.environ["no_proxy"] == "127.0.0.1"
    assert os.environ["TINKER_TELEMETRY"] == "0"
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    door.connect(address.url)
    assert os.environ["TINKER_TELEMETRY"] == "1", "the user's own choice stands"


def test_importing_the_door_is_cheap() -> None:
    code = "import sys, tinsmith.connect; print([m for m in ('tinker', 'torch', 'pydantic', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_port_is_in_the_advice() -> None:
    with pytest.raises(ConfigError, match=str(settings.DEFAULT_PORT)):
        door.check_url("nowhere")


# ── with the real service ────────────────────────────────────────────────────────────────────

REAL_STARTER = (
    "from tinsmith.connect import connect; import os\n"
    "with connect() as client: print(client.get_server_capabilities().supported_models[0].model_name)\n"
    "from tinsmith.connect import local_service; print(local_service().pid)"
)


def test_two_scripts_at_once_share_the_real_service_past_a_dead_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("TINSMITH_IDLE_SECONDS", "60")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    scripts = [
        subprocess.Popen([sys.executable, "-c", REAL_STARTER], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        answers = {script.communicate(timeout=120)[0] for script in scripts}
        assert len(answers) == 1, answers
        model, pid = answers.pop().split()
        assert model == settings.EMBEDDED_MODEL
        address = door.read_address(tmp_path / "service.json")
        assert address is not None
        assert address.pid == int(pid)
        service = psutil.Process(address.pid)
        service.terminate()
        service.wait(timeout=30)
        assert not (tmp_path / "service.json").exists(), "it takes its announcement back"
    finally:
        address = door.read_address(tmp_path / "service.json")
        if address is not None and psutil.pid_exists(address.pid):
            psutil.Process(address.pid).kill()
