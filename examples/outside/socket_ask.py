"""Ask over a plain socket: socket_ask.py SERVER SUBJECT BODY [NAME:VALUE …].

Needs Python and nothing else. Every subject for external clients answers requests, so this one program asks an
agent, publishes to one, and calls every verb of `api.v1`. It prints the answer's headers on stderr and its
body on stdout, and ends with 1 when the answer is an error. What `events` answers is printed until the end.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 40.0
"""A little more than the 30 s after which an unanswered question is answered with 408."""


class Answer(NamedTuple):
    """A message that came; names of headers in lower case."""

    status: str
    headers: dict[str, str]
    body: bytes
    reply: str


class Line:
    """A connection to nats://[user:password@]host:port."""

    def __init__(self, server: str) -> None:
        url = urlsplit(server if "//" in server else f"//{server}")
        self._socket = socket.create_connection((url.hostname or "", url.port or 4222), PATIENCE_S)
        self._said = self._socket.makefile("rb")
        hello: dict[str, object] = {"verbose": False, "headers": True, "no_responders": True}
        if url.username:
            hello |= {"user": unquote(url.username), "pass": unquote(url.password or "")}
        # Answers come to a subject without other subscribers; a user may be allowed no other prefix.
        self.inbox = f"_INBOX_{url.username or 'socket'}.{secrets.token_hex(8)}"
        self._socket.sendall(f"CONNECT {json.dumps(hello)}\r\nSUB {self.inbox} 1\r\n".encode())

    def publish(self, subject: str, body: bytes, *headers: str, reply: str = "") -> None:
        """Send one message; a header is `Name:Value`."""
        head = "".join(f"{one}\r\n" for one in ("NATS/1.0", *headers, "")).encode()
        to = f"{subject} {reply}".rstrip()
        sizes = f"{len(head)} {len(head) + len(body)}"
        self._socket.sendall(f"HPUB {to} {sizes}\r\n".encode() + head + body + b"\r\n")

    def answers(self) -> Iterator[Answer]:
        """Yield what comes, until the server closes the connection."""
        while verb := self._said.readline().decode().split():
            match verb:
                case ["PING"]:
                    self._socket.sendall(b"PONG\r\n")
                case ["-ERR", *words]:
                    sys.exit(f"the server refuses: {' '.join(words)}")
                case ["MSG", _, _, *reply, size]:
                    yield Answer("", {}, self._read(size), "".join(reply))
                case ["HMSG", _, _, *reply, head, size]:
                    raw = self._read(size)
                    status, *lines = (
                        raw[: int(head)].decode().removesuffix("\r\n\r\n").split("\r\n")
                    )
                    pairs = [line.split(":", 1) for line in lines]
                    found = {name.lower(): value.strip() for name, value in pairs}
                    status = status.removeprefix("NATS/1.0").strip()
                    yield Answer(status, found, raw[int(head) :], "".join(reply))

    def _read(self, size: str) -> bytes:
        return self._said.read(int(size) + 2)[:-2]


def main(server: str, subject: str, body: str, *headers: str) -> int:
    """Ask, print what is answered, and return the exit code."""
    line = Line(server)
    line.publish(subject, body.encode(), *headers, reply=line.inbox)
    for answer in line.answers():
        if answer.status:  # 503: no host serves the subject
            sys.exit(f"no answer: {answer.status}")
        event = answer.headers.get("actor-event")
        if event == "beat":  # says that the host still listens
            line.publish(answer.reply, b"")
            continue
        for name, value in answer.headers.items():
            print(f"{name}: {value}", file=sys.stderr)
        print(answer.body.decode(), flush=True)
        if "nats-service-error-code" in answer.headers:
            return 1
        if event in {None, "end"}:
            return 0
    sys.exit("the server closed the connection")


if __name__ == "__main__":
    if len(sys.argv) <= len(["program", "server", "subject"]):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
