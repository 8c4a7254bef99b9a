"""The parts of `broker.client`.

Calls enter through `client`, become checked `requests`, travel over `connection`, and `responses` reads what
comes back and decides whether to try again. Below are `nats` and `wire`.
"""
