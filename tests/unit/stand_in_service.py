"""A tiny process that announces itself like `tinsmith serve`, or fails in the way FAULT names."""

from __future__ import annotations

import json
import os
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from tinsmith import settings

FAULT = os.environ.get("STAND_IN_FAULT", "")
TOKEN = uuid.uuid4().hex


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        healthy = self.path == "/api/v1/healthz"
        body = json.dumps({"status": "ok", "token": TOKEN, "version": "9"}).encode()
        self.send_response(200 if healthy else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    settings.home().mkdir(parents=True, exist_ok=True)
    with (settings.home() / "started.txt").open("a") as file:
        file.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\n")
    if FAULT == "dies":
        sys.exit("the stove is cold\nand the tin is out")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fields = {
        "url": f"http://127.0.0.1:{server.server_address[1]}",
        "pid": os.getpid(),
        "started_at": psutil.Process().create_time(),
        "version": "9",
        "token": TOKEN,
    }
    partial = settings.service_file().with_suffix(".part")
    partial.write_text(json.dumps(fields))
    partial.replace(settings.service_file())
    server.serve_forever()


if __name__ == "__main__":
    main()
