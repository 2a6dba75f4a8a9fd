"""Sends a session's heartbeats on a connection of its own until its input ends; then says how long they took."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse

EVERY_SECONDS = 0.25


def _post(connection: http.client.HTTPConnection, path: str, body: dict[str, object]) -> bytes:
    headers = {"content-type": "application/json", "x-api-key": "tml-local"}
    connection.request("POST", f"/api/v1/{path}", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {text!r}")
    return text


def beat(url: str, ended: threading.Event) -> list[float]:
    """Seconds of each heartbeat; a slow one does not put off the one after it for long."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    opened = _post(connection, "create_session", {"tags": [], "sdk_version": "probe"})
    session = {"session_id": json.loads(opened)["session_id"]}
    _post(connection, "session_heartbeat", session)
    print(flush=True)  # somebody waits for this
    taken: list[float] = []
    while not ended.is_set():
        started = time.monotonic()
        _post(connection, "session_heartbeat", session)
        taken.append(time.monotonic() - started)
        ended.wait(max(EVERY_SECONDS - taken[-1], 0.0))
    connection.close()
    return taken


def main() -> None:
    ended = threading.Event()

    def until_input_ends() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_input_ends, daemon=True).start()
    print(json.dumps(beat(sys.argv[1], ended)))


if __name__ == "__main__":
    main()
