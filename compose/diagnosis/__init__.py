"""Health checks of each server, for `callboard doctor`. Those of NATS and Redis need their drivers.

Addresses enter, findings leave. The command `doctor` is above; `assembly` is below.
"""

from compose.diagnosis.finding import Finding, Level, judge
from compose.diagnosis.postgres import deployment_of, diagnose_postgres

__all__ = ["Finding", "Level", "deployment_of", "diagnose_postgres", "judge"]
