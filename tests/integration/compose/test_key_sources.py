"""Where the keys are read that sign tokens of another system."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors.errors import ContractError
from compose._web.identity.json_web_tokens import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def key_server(bodies: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A web server of this machine that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = bodies[self.path]
            self.send_response(status)
            if status == 302:
                self.send_header("location", body.decode())
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_keys_of_a_place_are_read_from_there_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a file or an address: no other one, no endless answer, none that others can change on the way."""
    monkeypatch.setenv("no_proxy", "*")
    data = b'{"keys": []}'
    large = b" " * 1_100_000 + data
    bodies = {"/ok": (200, data), "/far": (302, b"/ok"), "/bad": (500, b""), "/large": (200, large)}
    file = tmp_path / "jwks.json"
    await asyncio.to_thread(file.write_bytes, data)
    assert await source_of(str(file))() == data
    await asyncio.to_thread(file.write_bytes, large)
    for location in (str(file), str(tmp_path), str(tmp_path / "nothing")):
        with pytest.raises((OSError, ValueError)):
            await source_of(location)()
    with key_server(bodies) as url:
        assert await source_of(f"{url}/ok")() == data
        for path in ("far", "bad", "large"):
            with pytest.raises((OSError, ValueError)):
                await source_of(f"{url}/{path}")()
    for bad in ("http://id.example/keys", "http://10.0.0.1/", "http://127.0.0.1@evil.example/"):
        with pytest.raises(ContractError, match="use https"):
            source_of(bad)
