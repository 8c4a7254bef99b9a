"""A host's ears for outsiders: requests of `api.v1`, questions to agents, and live events.

Requests enter through `gateway`, `handlers` calls the runtime's own API with them, and `responses` makes
bytes of what it says. Below are `nats` and `wire`; `mail` and `client` are neighbours that it does not see.
"""
