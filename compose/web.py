"""HTTP API for sessions, runs and agents: an ASGI application, and the server that `callboard serve` runs.

Any number of processes may serve the API, also in
hosts: no state that a later request needs is kept in a process.
"""

from actors._kernel.stores.administration import Scope
from compose._web.application import app
from compose._web.identity.authentication import Authentication
from compose._web.requests import LOCAL, Principal

__all__ = ["LOCAL", "Authentication", "Principal", "Scope", "app"]

__path__: list[str] = []  # modules of the release before were below this one
