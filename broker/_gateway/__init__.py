"""The gateway of a host for external clients: requests of `api.v1`, asks to agents, and live events.

Requests enter through `gateway`, `handlers` calls the runtime's own API with them, and `responses` makes
bytes of the answers. Below are `nats` and `wire`; `mail` and `client` are neighbours that it does not see.
"""
