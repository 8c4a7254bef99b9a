"""The NATS client: connections, requests to JetStream, permissions. Nothing here knows an agent.

Requests enter; answers, or errors that say what is known of the outcome, leave. `mail`, `gateway` and
`client` are above it, `wire` is below.
"""
