"""The real SDK against a real server in a thread; `backend_factory` decides which engine serves."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import tinker
import uvicorn
from starlette.types import ASGIApp
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tinsmith.service.app import create_app
from tinsmith.service.core import Service
from tinsmith.service.engine.backend import Backend
from tinsmith.service.engine.fake import FakeBackend
from tinsmith.service.protocol import BoundedProtocol
from tinsmith.settings import EMBEDDED_MODEL, LOCAL_API_KEY

BackendFactory = Callable[[], Backend]


@dataclass
class Running:
    """A served Service."""

    url: str
    service: Service
    backend: Backend
    directory: Path

    def client(self) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=LOCAL_API_KEY)


@contextmanager
def serving(
    backend: Backend,
    directory: Path,
    *,
    adapter_bytes: int | None = None,
    make_app: Callable[[Service], ASGIApp] = create_app,
) -> Iterator[Running]:
    """Serves on a free port until the block ends."""
    service = Service(
        backend, directory, token="t", default_model=EMBEDDED_MODEL, adapter_bytes=adapter_bytes
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(service), http=BoundedProtocol, log_level="error", lifespan="on", ws="none"
        )
    )
    started = threading.Event()
    startup = server.startup

    async def startup_and_tell(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = startup_and_tell
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert started.wait(30)
    loop = service.loop
    assert loop is not None
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Running(url, service, backend, directory)
    finally:
        loop.call_soon_threadsafe(service.begin_close)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose ids are the characters' numbers, as FakeBackend reads them."""
    directory = tmp_path_factory.mktemp("tokenizer") / "fake" / "model"
    directory.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({chr(i): i for i in range(256)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    return directory


@pytest.fixture(scope="module")
def backend_factory(tokenizer_directory: Path) -> BackendFactory:
    """The engine under test; override it in a module to run that module's tests on another."""
    return lambda: FakeBackend(directory=tokenizer_directory)


@pytest.fixture(scope="module")
def server(
    backend_factory: BackendFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with serving(backend_factory(), tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[tinker.ServiceClient]:
    client = server.client()
    yield client
    client.close("success").result()


@pytest.fixture(scope="module")
def trainer(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(EMBEDDED_MODEL, rank=8, seed=1)


@pytest.fixture(autouse=True)
def quiet_telemetry() -> None:
    logging.getLogger("tinker").setLevel(logging.ERROR)
