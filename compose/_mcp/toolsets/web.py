"""The toolset `web`: fetches the text of a public page by GET."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpcore2
from typing_extensions import override

from actors._kernel.agent.tools import Tool
from actors.errors import ActorsError, Facts

MAX_PAGE_BYTES: Final = 1024 * 1024
MAX_REDIRECTS: Final = 5
FETCH_LIMIT_S: Final = 30.0
"""Seconds for a whole fetch, including redirects."""
_MAX_ADDRESSES: Final = 4
"""Maximum number of addresses of a host name that are tried."""
_HEADERS: Final[dict[bytes | str, bytes | str]] = {
    "accept": "text/*, application/json;q=0.9, */*;q=0.1",
    "accept-encoding": "identity",  # a small body cannot expand into a large one
    "user-agent": "callboard-mcp-worker",
}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class FetchRefusedError(Facts, ActorsError):
    """A page cannot be fetched.

    Attributes:
        url: The page's URL, or the host.
        problem: The reason.
    """

    text = "fetch of {url}: {problem}"
    url: str
    problem: str


def web_tools(*, allow_private: bool) -> list[Tool]:
    """Return the tools. Without `allow_private` they connect to public addresses only."""
    backend = _Network(allow_private=allow_private)

    async def fetch_url(url: str) -> dict[str, Any]:
        async with httpcore2.AsyncConnectionPool(network_backend=backend) as pool:
            for _ in range(MAX_REDIRECTS + 1):
                page = await _fetch(pool, url)
                if "location" not in page:
                    return page
                url = urljoin(url, page["location"])
        raise FetchRefusedError(url, f"there are more than {MAX_REDIRECTS} redirects")

    limits_text = f"at most {MAX_PAGE_BYTES} bytes, within {FETCH_LIMIT_S:g} s"
    description = f"Fetch a page by GET and return its text: {limits_text}. Redirects are followed."
    return [Tool("fetch_url", description, fetch_url, idempotent=True, timeout_s=FETCH_LIMIT_S)]


async def _fetch(pool: httpcore2.AsyncConnectionPool, url: str) -> dict[str, Any]:
    """Return a page, or the `location` of a redirect."""
    _check_url(url)
    try:
        async with pool.stream("GET", url, headers=_HEADERS) as response:
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in response.headers
            }
            if response.status in _REDIRECTS and "location" in headers:
                return {"location": headers["location"]}
            data = bytearray()
            async for piece in response.aiter_stream():
                data += piece
                if len(data) > MAX_PAGE_BYTES:
                    break
            return _page(url, response.status, headers, bytes(data))
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as exc:
        raise FetchRefusedError(url, f"{type(exc).__name__} {exc}".strip()) from exc


def _page(url: str, status: int, headers: dict[str, str], data: bytes) -> dict[str, Any]:
    kind = headers.get("content-type", "")
    if headers.get("content-encoding", "identity") != "identity" or b"\x00" in data:
        raise FetchRefusedError(url, f"the page is not text but {kind or 'of an unknown type'}")
    charset = kind.partition("charset=")[2].partition(";")[0].strip(" \"'") or "utf-8"
    try:
        text = data[:MAX_PAGE_BYTES].decode(charset, errors="replace")
    except (LookupError, ValueError):
        text = data[:MAX_PAGE_BYTES].decode(errors="replace")
    is_cut = len(data) > MAX_PAGE_BYTES
    return {"url": url, "status": status, "content_type": kind, "text": text, "is_cut": is_cut}


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise FetchRefusedError(url, "not a URL: give http://… or https://…, in ASCII")


class _Network(httpcore2.AnyIOBackend):
    """Connects to the address that was checked, even if the name resolves to another one meanwhile."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        problem: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in await self._addresses(host, port):
            try:
                return await super().connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.NetworkError, httpcore2.TimeoutException) as exc:
                problem = exc
        raise problem

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            address_infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise httpcore2.ConnectError(f"{host} has no address: {exc}") from exc
        addresses = list(dict.fromkeys(str(info[4][0]) for info in address_infos))
        public_addresses = [
            address for address in addresses if self._allow_private or is_public(address)
        ]
        if addresses and not public_addresses:
            problem = f"{host} is at {addresses[0]}, which is not a public address"
            raise FetchRefusedError(host, f"{problem}: --allow-private allows it")
        return public_addresses[:_MAX_ADDRESSES]


def is_public(address: str) -> bool:
    """Return whether an address is public. An IPv6 address that embeds an IPv4 address counts as not public."""
    parsed_address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed_address, ipaddress.IPv6Address) and (
        parsed_address.ipv4_mapped
        or parsed_address.sixtofour
        or parsed_address.teredo
        or parsed_address in _NAT64
    ):
        return False
    return parsed_address.is_global and not parsed_address.is_multicast
