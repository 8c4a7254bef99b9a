"""Addresses of this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_own_address(host: str) -> bool:
    """Return True if ``HOST`` or ``HOST:PORT`` is ``localhost`` or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
