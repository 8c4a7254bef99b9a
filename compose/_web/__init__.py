"""The HTTP API, in rooms.

A request enters at `application`, which checks size, host and principal. The models of the request's
`WebEndpoint` validate query and body. `endpoint` has the only table of scopes per endpoint. A response is the
JSON of a model, a problem (RFC 9457) or a stream of events.
"""
