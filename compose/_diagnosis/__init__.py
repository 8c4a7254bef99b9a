"""Health checks of the servers, for `callboard doctor`. The checks of NATS and Redis need their drivers.

A check takes the address of a server, and returns findings. The command `doctor` imports this package, which
imports `assembly`.
"""

from compose._diagnosis.finding import Finding, Level, judge
from compose._diagnosis.postgres import deployment_of, diagnose_postgres

__all__ = ["Finding", "Level", "deployment_of", "diagnose_postgres", "judge"]
