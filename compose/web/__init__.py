"""Sessions, runs and agents over HTTP: an ASGI application, and the server that `callboard serve` runs.

A request enters by `application`, which checks size, host and principal, and is validated by the models of
its `WebEndpoint`. `access` has the one table of who may what. An answer leaves as JSON of a model, as a problem
(RFC 9457), or as a stream. Any number of processes may serve it, beside hosts: nothing is kept in one between
two requests.
"""

from actors.kernel.storage.token import Scope
from compose.web.application import app
from compose.web.identity.authentication import Authentication
from compose.web.principal import LOCAL, Principal

__all__ = ["LOCAL", "Authentication", "Principal", "Scope", "app"]
