"""A pooler in front of PostgreSQL, with respect to the settings that a session requests at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from typing_extensions import override

from tests.harness.proxy import FaultProxy

if TYPE_CHECKING:
    import asyncio

    from tests.harness.proxy import _Link

KNOWN: Final = frozenset(
    {
        "user",
        "database",
        "application_name",
        "client_encoding",
        "datestyle",
        "timezone",
        "standard_conforming_strings",
    }
)
"""Settings that pgbouncer 1.18 passes on, whatever its configuration is."""
_SSL_REQUEST: Final = (80877103).to_bytes(4, "big")


class Pooler(FaultProxy):
    """Passes a session on to the server with the settings that pgbouncer knows.

    Attributes: others: Treatment of other settings: pgbouncer `refuses` such a session, and `drops`
    those that `ignore_startup_parameters` names, which is the usual remedy; `passes`: no pooler.
    """

    others: Literal["refuses", "drops", "passes"] = "drops"

    @override
    async def _pump_requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        packet = await _packet(reader)
        if packet[:4] == _SSL_REQUEST:
            link.client.write(b"N")
            packet = await _packet(reader)
        words = packet[4:].rstrip(b"\0").split(b"\0")
        parameters = dict(zip(words[::2], words[1::2], strict=True))
        unknown = [name for name in parameters if name.decode() not in KNOWN]
        if self.others == "passes":
            unknown = []
        if unknown and self.others == "refuses":
            link.client.write(_refusal(b"unsupported startup parameter: " + unknown[0]))
            await link.client.drain()
            link.client.close()
            link.server.transport.abort()
            return
        passed_words = [
            word
            for name, value in parameters.items()
            if name not in unknown
            for word in (name, value)
        ]
        body = packet[:4] + b"\0".join(passed_words) + b"\0\0"
        link.server.write((len(body) + 4).to_bytes(4, "big") + body)
        await super()._pump_requests(reader, link)


async def _packet(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(length - 4)


def _refusal(text: bytes) -> bytes:
    body = b"SFATAL\0C08P01\0M" + text + b"\0\0"
    return b"E" + (len(body) + 4).to_bytes(4, "big") + body
