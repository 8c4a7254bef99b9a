"""A server of chat completions on loopback: real HTTP, with scripted answers."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator


def said(content: Any = "hello", **more: Any) -> dict[str, Any]:
    """Return a chat completion."""
    message = {"role": "assistant", "content": content, **more}
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"model": "served", "choices": [choice], "usage": usage}


def wanting(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return a completion with tool calls: id, name and the text of the arguments of each."""
    tool_calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        for id_, name, text in calls
    ]
    return said(None, tool_calls=tool_calls)


@dataclass
class ChatServer:
    """The server.

    Attributes: url: Its base URL. answers: By path (``/chat/completions``): status and body of the
    next responses, in order; the last one is repeated. Text is sent unchanged. asked: Method, path,
    headers (names in lower case) and body of each request.
    """

    url: str = ""
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)

    def take(self, method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, bytes]:
        """Record a request; return status and body of the response."""
        self.asked.append((method, path, headers, body))
        answers = self.answers.get(path.partition("?")[0])
        if not answers:
            return 404, b'{"error": "there is no such path"}'
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return status, text.encode()


@contextmanager
def chat_server(*answers: Any) -> Iterator[ChatServer]:
    """Serve these answers to ``POST /v1/chat/completions``."""
    served = ChatServer()
    if answers:
        served.answers["/chat/completions"] = [
            answer if isinstance(answer, tuple) else (200, answer) for answer in answers
        ]

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            path = self.path.removeprefix("/v1")
            body = json.loads(raw) if raw else None
            status, text = served.take(self.command, path, headers, body)
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _respond  # noqa: N815 - names of the library

        @override
        def log_message(self, *_args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
