"""The client of a deployment. `Callboard` sends requests to `callboard serve` or to a database.

    async with Callboard("https://flows.example", token=token) as callboard:
        run, _ = await callboard.graph_runs.start("refund", {"order": 7}, key="r-7")

Extra: ``client``. `Callboard.over(runtime)` also needs the extras of the runtime's stores.
"""

from __future__ import annotations

from compose._client.callboard import Callboard, FlowsApi, GraphRunsApi, SnapshotsApi
from compose._client.http import (
    ApiFailedError,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnreachableError,
)

__all__ = [
    "ApiFailedError",
    "ApiNotFoundError",
    "ApiRefusedError",
    "ApiUnreachableError",
    "Callboard",
    "FlowsApi",
    "GraphRunsApi",
    "SnapshotsApi",
]
