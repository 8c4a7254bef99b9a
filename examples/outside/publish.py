"""Publish one message to an agent without any library: publish.py HOST:PORT TYPE KEY ME ID JSON."""

import re
import secrets
import socket
import sys


def token(name: str) -> str:
    """A name as one token of a subject (up to 128 bytes)."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda m: b"%%%02X" % m[0][0], name.encode()).decode()


server, type_, key, me, message_id, body = sys.argv[1:]
host, port = server.rsplit(":", 1)
subject = f"agent.v1.default.{token(type_)}.{token(key)}.ext.{token(me)}"
inbox = f"_INBOX_{token(me)}.{secrets.token_hex(8)}"
head = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()
data = head + body.encode()
with socket.create_connection((host, int(port)), timeout=5) as line:
    line.sendall(
        f'CONNECT {{"verbose":false,"headers":true}}\r\nSUB {inbox} 1\r\n'
        f"HPUB {subject} {inbox} {len(head)} {len(data)}\r\n".encode()
        + data
        + b"\r\n"
    )
    answer = line.makefile("rb")
    while not (said := answer.readline()).startswith((b"MSG", b"-ERR")) and said:
        pass
    print((answer.readline() if said.startswith(b"MSG") else said).decode().strip())
