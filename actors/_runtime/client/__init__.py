"""The client API of a deployment, for programs beside a runtime and for external clients.

In: calls of `Runtime`, and of the gateway for external clients. Out: rows by way of the store, answers and
live events. Above: `runtime.py`. Below: the worker's intake, and the store.
"""
