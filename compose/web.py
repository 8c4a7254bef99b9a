"""HTTP API for sessions, runs and agents: an ASGI application, and the server that `callboard serve` runs.

Any number of processes may serve the API, also in hosts: no state that a later request needs is kept in a
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._kernel.stores.administration import Scope
    from compose._web.application import app
    from compose._web.identity.authentication import Authentication
    from compose._web.process import serve_web
    from compose._web.requests import LOCAL, Principal
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._kernel.stores.administration": ("Scope",),
            "compose._web.application": ("app",),
            "compose._web.identity.authentication": ("Authentication",),
            "compose._web.process": ("serve_web",),
            "compose._web.requests": ("LOCAL", "Principal"),
        },
    )

__all__ = ["LOCAL", "Authentication", "Principal", "Scope", "app", "serve_web"]
