"""llama.cpp's server in this process, and the SDK's model that sends requests to it."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors.runtime.loop.tasks import in_thread

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_log = logging.getLogger("callboard.models")

_ALIAS: Final = "local"
_LIMIT_S: Final = 60.0
"""Seconds that counting tokens may take."""


class LlamaServer:
    """llama.cpp's HTTP server on a free port of 127.0.0.1. A request has to send the server's key.

    Args:
        path: A GGUF file.
        context_window: Tokens of request and answer together, per slot.
        threads: Number of computing threads; None for llama.cpp's default.
        slots: Maximum number of concurrent calls.
    """

    def __init__(self, path: Path, *, context_window: int, threads: int | None, slots: int) -> None:
        self._path, self._threads, self._slots = path, threads, slots
        self.context_window = context_window
        self._key = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._server: Any = None

    async def start(self) -> None:
        """Load the model, if it is not loaded. Cancelling the call does not stop the loading."""
        if self._server is None:
            await in_thread(self._load)

    async def stop(self) -> None:
        """Stop the server and free its memory. Does nothing if the server does not run."""
        server, self._server = self._server, None
        await in_thread(_drop, [server])

    async def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text by the model's own tokenizer."""
        answer = await in_thread(self._post, "/tokenize", {"content": text})
        return len(answer["tokens"])

    def sdk(self) -> Model:
        """Return the SDK's model for this server. The server has to be started."""
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - imports the SDK
        from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415

        profile = OpenAIModelProfile(supports_json_schema_output=True, supports_tools=False)
        address = f"{self._server.listening_address}/v1"
        provider = OpenAICompatibleProvider(_ALIAS, base_url=address, api_key=self._key)
        return OpenAIChatModel(_ALIAS, provider=provider, profile=profile)

    def _load(self) -> None:
        with self._lock:
            if self._server is not None:
                return
            told = "loading a local model before its first answer"
            _log.info(told, extra={"file": self._path.name})
            import xllamacpp  # noqa: PLC0415 - 34 MB that nothing else needs

            params = xllamacpp.CommonParams()
            params.model.path, params.model_alias = str(self._path), {_ALIAS}
            params.n_ctx, params.n_parallel = self.context_window * self._slots, self._slots
            params.port, params.api_keys, params.ui = 0, [self._key], False
            params.offline, params.warmup, params.verbosity = True, False, -1
            if self._threads is not None:
                params.cpuparams.n_threads = self._threads
                params.cpuparams_batch.n_threads = self._threads
            self._server = xllamacpp.Server(params)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server
            self._server.listening_address + path,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310
            return json.load(answer)


def _drop(servers: list[Any]) -> None:
    """Drop the last reference. The server's destructor waits for its threads."""
    servers.clear()
