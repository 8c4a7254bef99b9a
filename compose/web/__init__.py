"""HTTP API for sessions, runs and agents: an ASGI application, and the server that `callboard serve` runs.

A request enters at `application`, which checks size, host and principal. The models of the request's
`WebEndpoint` validate query and body. `endpoint` has the only table of scopes per endpoint. A response is the
JSON of a model, a problem (RFC 9457) or a stream of events. Any number of processes may serve the API, also in
hosts: no state that a later request needs is kept in a process.
"""

from actors.kernel.stores.administration import Scope
from compose.web.application import app
from compose.web.identity.authentication import Authentication
from compose.web.requests import LOCAL, Principal

__all__ = ["LOCAL", "Authentication", "Principal", "Scope", "app"]
