"""What programs ask of a deployment, from inside it and from outside.

In: calls of `Runtime`, and of the gateway for outsiders. Out: rows by way of the store, answers and
live events. Above: `runtime.py`. Below: the worker's intake, and the store.
"""
